"""The bridge: the ids that stand between an answer and the next one, proved on the template's tail.

The ids of a later prompt are those fed and sampled before, so only what the template writes behind an answer can be
wrong. It is rendered behind a made-up chat and used when it is the same behind every history and answer, shows the new
messages once and in order, begins with what ends an answer, and ends as a first prompt does. How a template would
write the history again isn't asked: one that drops old reasoning is continued all the same. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from areal.errors import DataError
from areal.values.generation import Ids, as_ids
from areal.values.images import Image
from areal.workflow.content import PROBE_TOOL, RenderedChat, common_start
from areal.workflow.rows.messages import Message, ToolSchema
from areal.workflow.rows.rendering import render_chat

if TYPE_CHECKING:
    from areal.workflow.tokenizer import Tokenizer

_MARK = "qz7arealq"  # stands for an answer in the made-up chats
_CONTROL = re.compile(
    r"(?:<\|[^<>|\s]{1,40}\|>|<｜[^<>]{1,40}｜>|</?[a-z_]{1,40}>|<[a-z_]{1,40}\|>|<\|[a-z_]{1,40}>|\[/?[A-Z_]{1,40}\])*"
)
_ENDING = re.compile(r"end|eo[a-z]\b|/s>|return|call\|>|turn\|>|e~", re.IGNORECASE)  # names of tokens that end turns
_OPENERS = ("user", "observation", "tool")  # in the name of a token that opens a turn and so ends the one before
_KINDS = 512  # of later turns whose proof is remembered
_SAID = ("7", "Yes, it is.", "one\n", "é ")
_FIX = "use another chat template (model.chatTemplate), or train single turns"


def _asked(text: str) -> Message:
    return {"role": "user", "content": text}


def _answered(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


_FIRST = (_asked("q"),)
_HISTORIES: tuple[tuple[Message, ...], ...] = (
    _FIRST,
    (_asked("q"), _answered("one"), _asked("two")),
    (_asked("a b"), _answered("x\ny"), _asked("z"), _answered("w"), _asked("v")),
)


@dataclass(frozen=True)
class TurnProof:
    """Whether later turns of one kind are exact: `why` not, or nothing; and whether they are written with the tools."""

    why: str
    with_tools: bool = False


class TurnBridge:
    """Later turns of one tokenizer's template; without one, texts between two line ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._proof = lru_cache(_KINDS)(self._prove)

    @cached_property
    def skeleton(self) -> str:
        """A chat of placeholders: the text that the template writes around turns."""
        for roles in (("system", "user", "assistant", "user"), ("user", "assistant", "user"), ("user",)):
            try:
                return self._tokenizer.render_chat([{"role": role, "content": "q"} for role in roles])
            except DataError:
                continue
        return ""

    @cached_property
    def end(self) -> int | None:
        """The token by which the template ends an answer; None where there is none."""
        if not self._tokenizer.has_chat_template:
            return self._tokenizer.end_id
        try:
            return self._close(self._tail(_FIRST, _answered(_MARK), [_asked("and")], _MARK), _answered(_MARK), "{}")[1]
        except DataError:
            return None

    def unproved(self, roles: Sequence[str] = ("user",), *, calls: int = 0, kwargs: Mapping[str, Any] = {}) -> str:
        """Reason why a conversation can't be continued exactly by messages of these roles; empty when it can.

        `calls` is how many calls of tools the answer before them holds.
        """
        if not self._tokenizer.has_chat_template:
            return ""
        return self._proof(tuple(roles), calls, json.dumps(dict(kwargs), sort_keys=True)).why

    def ids(
        self,
        messages: Sequence[Message],
        *,
        last_id: int | None,
        calls: Sequence[Mapping[str, Any]] = (),
        tools: Sequence[ToolSchema] = (),
        kwargs: Mapping[str, Any] = {},
        images: Sequence[Image] = (),
    ) -> Ids:
        """The ids between an answer and the next one `[tokens]`.

        Args:
            messages: what is said in between, in the normal form.
            last_id: the answer's last token. What it has said of its close isn't among the ids.
            calls: of tools in the answer, in the normal form: results may name them.
            tools: those of the request.
            kwargs: arguments of the template over those of the job.
            images: that the marks in what is said stand for.

        Raises:
            DataError: where the template can't be continued exactly, or loses a text.
        """
        if not self._tokenizer.has_chat_template:
            return self._between_lines(messages)
        over = json.dumps(dict(kwargs), sort_keys=True)
        proof = self._proof(tuple(message["role"] for message in messages), len(calls), over)
        if proof.why:
            raise DataError(f"this model's chat template can't be continued exactly: {proof.why}", fix=_FIX)
        mark = _MARK
        said = json.dumps([*messages, *tools], default=str)
        while mark in said:
            mark += "q"
        answer = _calling(calls, mark) if calls else _answered(mark)
        named = tools if proof.with_tools else ()
        tail = self._tail(_FIRST, answer, messages, mark, named, over)
        start, _, close = self._close(tail, answer, over, named, mark)
        ids = self._tokenizer.encode_chat(tail.after(start), images).tolist()
        close_ids = self._tokenizer.encode(tail[start:close], special=False).tolist()
        done = close_ids.index(last_id) + 1 if last_id in close_ids else 0
        return as_ids(ids[done:])

    def _between_lines(self, messages: Sequence[Message]) -> Ids:
        text, data = "", []
        for message in messages:
            start = len(text) + 1
            text += f"\n{message['content']}\n"
            data.append((start, len(text) - 1))
        return self._tokenizer.encode_chat(RenderedChat(text, tuple(data)))

    def _tail(
        self,
        history: Sequence[Message],
        answer: Message,
        new: Sequence[Message],
        mark: str,
        tools: Sequence[ToolSchema] = (),
        over: str = "{}",
    ) -> RenderedChat:
        """Tail: the template's text behind the mark in an answer that these messages follow. Raises DataError."""
        chat = [*history, answer, *new]
        try:
            whole = render_chat(chat, self._tokenizer, tools=tools, kwargs=json.loads(over))
        except DataError as error:
            if mark not in self._tokenizer.render_chat(chat, tools=tools, kwargs=json.loads(over)):
                raise DataError("it leaves out what an assistant said") from error
            raise
        before, found, _ = whole.rpartition(mark)
        if not found:
            raise DataError("it leaves out what an assistant said")
        tail = whole.after(len(before) + len(mark))
        if len(tail.data) < sum(bool(str(message["content"]).strip()) for message in new):
            raise DataError("it writes a later message before the answer that it follows")
        return tail

    def _close(
        self, tail: str, answer: Message, over: str, tools: Sequence[ToolSchema] = (), mark: str = _MARK
    ) -> tuple[int, int | None, int]:
        """The close in a tail: its start, the token that ends the answer, its end.

        It is what the tail has in common with the answer written as the last message of a chat. A template that
        closes a last answer otherwise, or not at all, closes it by the token with which it goes on. Raises DataError.
        """
        chat = [*_FIRST, answer]
        whole = self._tokenizer.render_chat(chat, generation_prompt=False, tools=tools, kwargs=json.loads(over))
        closed = whole.rpartition(mark)[2]
        common = tail[: common_start(tail, closed)]
        shared, ahead = self._control_in(common), self._control_in(tail)
        eos, calls = self._tokenizer.given_eos_ids, bool(answer.get("tool_calls"))
        ending = [token for token in shared if _ENDING.search(common[token[0] : token[1]])]
        ends = [token for token in shared if token[2] in eos] or ending or shared
        if ends:
            start, end, token = ends[-1]
            if calls:
                return start, token, _run(ahead, start)
            control = self._tokenizer.content.control
            if not _CONTROL.fullmatch(control.sub("", tail[:start]) if control is not None else tail[:start]):
                raise DataError("an answer isn't closed by a token that ends it")
            return 0, token, end
        first = next((token for token in ahead if token[0] == len(common) * calls), None)
        if calls and first is not None:
            return first[0], first[2], _run(ahead, first[0])
        if first is not None and (written := self._control_in(closed)) and written[0][0] == 0:
            return 0, written[0][2], first[1]
        name = tail[first[0] : first[1]] if first is not None else ""
        if first is not None and not closed and (first[2] in eos or any(role in name.lower() for role in _OPENERS)):
            return 0, first[2], first[1]
        raise DataError("an answer isn't closed by a token that ends it")

    def _control_in(self, text: str) -> list[tuple[int, int, int]]:
        """Control tokens in a text: start, end, id."""
        control, added = self._tokenizer.content.control, self._tokenizer.added
        found = control.finditer(text) if control is not None else ()
        return [(place.start(), place.end(), added[place[0]]) for place in found]

    def _prove(self, roles: tuple[str, ...], calls: int, over: str) -> TurnProof:
        """With the tools only where it can't be proved without."""
        whys = []
        for tools in ((), _TOOLS):
            try:
                why = self._try(roles, calls, tools, over)
            except DataError as error:
                why = error.message
            if not why:
                return TurnProof("", bool(tools))
            whys.append(why)
        return TurnProof(whys[0])

    def _try(self, roles: tuple[str, ...], calls: int, tools: Sequence[ToolSchema], over: str) -> str:
        made = [_call(number) for number in range(calls)]
        new = [_said(role, number, made) for number, role in enumerate(roles)]
        tails = set()
        for history in _HISTORIES:
            for answer in _answers(made):
                try:
                    tail = self._tail(history, answer, new, _MARK, tools, over)
                except DataError:
                    if answer == _answers(made)[0]:
                        raise
                    continue  # such an answer isn't written by this template
                start, _, close = self._close(tail, answer, over, tools)
                tails.add(str(tail.after(start)))
        if len(tails) > 1:
            return "what it writes behind an answer depends on what stands before"
        (found,) = tails
        if roles[-1] != "tool" and not found.endswith(self._opening(over, tools)):
            return "a later turn is opened otherwise than the first"
        head = found[: close - start]
        for said in _SAID:
            apart = [*self._encode(said), *self._encode(head)]
            if self._encode(said + head) != apart:
                return "the tokens of a turn depend on what stands before"
        return ""

    def _opening(self, over: str, tools: Sequence[ToolSchema]) -> str:
        """Generation prompt: the text that opens an answer behind a first prompt."""
        render = partial(self._tokenizer.render_chat, _FIRST, tools=tools, kwargs=json.loads(over))
        closed, opened = render(generation_prompt=False), render()
        return opened[len(closed) :] if opened.startswith(closed) else ""

    def _encode(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer.encode(text, special=False)]


_NAMES = ("look", "peek")
_TOOLS = [{**PROBE_TOOL, "function": {**PROBE_TOOL["function"], "name": name}} for name in _NAMES]


def _call(number: int) -> dict[str, Any]:
    function = {"name": _NAMES[number % len(_NAMES)], "arguments": {"x": f"{_MARK}"}}
    return {"id": f"call{number:05}", "type": "function", "function": function}


def _calling(calls: Sequence[Mapping[str, Any]], mark: str) -> Message:
    """An answer with these calls, the mark at their ends."""
    marked = [{**call, "function": {**call["function"], "arguments": {"x": mark}}} for call in calls]
    return _answered("", tool_calls=marked)


def _answers(calls: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Answers behind which a tail is the same: bare, of lines, with reasoning; of calls also other arguments."""
    if not calls:
        return [_answered(_MARK), _answered("first\n\n" + _MARK), _answered(_MARK, reasoning_content="because")]
    bare, other = _calling(calls, _MARK), _calling(calls, "other " + _MARK)
    return [bare, other, {**bare, "content": "Let me see."}, {**bare, "reasoning_content": "because"}]


def _said(role: str, number: int, calls: Sequence[Mapping[str, Any]]) -> Message:
    message: Message = {"role": role, "content": f"NEW {number}."}
    if role == "tool" and calls:
        call = calls[min(number, len(calls) - 1)]
        message |= {"tool_call_id": call["id"], "name": call["function"]["name"]}
    return message


def _run(tokens: Sequence[tuple[int, int, int]], start: int) -> int:
    """End of the control tokens that follow one another from `start`."""
    for begin, end, _ in tokens:
        if begin == start:
            start = end
    return start
