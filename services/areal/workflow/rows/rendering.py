"""Rendering of chats in the normal form by a model's chat template, with proof that no text was lost.

A template may drop a message whose shape it does not know, or write it twice, without a word. So every text carries a
pair of marks through the template and has to come out once and in order; what does not is refused, with the message
named. The marks also tell where data stands, so that control strings in it are encoded as text. Pure but for the
template, which is the model's own code.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from areal.errors import DataError
from areal.workflow.content import RenderedChat
from areal.workflow.rows.messages import Message, ToolSchema, texts_of
from areal.workflow.tokenizer import Tokenizer

_PRIVATE = range(0xE000, 0xF8FA, 5)  # private-use characters: five for a set of marks
_THOUGHT_END = "</think>"  # templates that know the tags drop earlier turns' thoughts


@dataclass(frozen=True)
class _TextMarks:
    """Characters that no message holds: what opens a text by who says it, what closes one, where an answer stops."""

    data: str
    answer: str
    tool: str
    close: str
    stop: str

    def message(self, message: Message) -> Message:
        """The message with its text between marks; white space at the edges, which templates trim, stays outside."""
        before, inner, behind = _edges(str(message.get("content") or ""))
        opening, thought = self.data, ""
        if message["role"] == "assistant":
            head, end, said = inner.rpartition(_THOUGHT_END)
            lead, inner, rest = _edges(said)
            opening, thought, behind = self.answer, f"{head}{end}{lead}", f"{rest}{behind}"
        inner = f"{opening}{inner}{self.close}" if inner else inner
        return {**message, "content": f"{before}{thought}{inner}{behind}"}

    def calls(self, message: Message, control: re.Pattern[str] | None) -> Message:
        """The message with texts in its calls between marks, where they hold control strings."""
        calls = [
            {**call, "function": {**call["function"], "arguments": self.schema(call["function"]["arguments"], control)}}
            for call in message.get("tool_calls") or ()
        ]
        return {**message, "tool_calls": calls} if calls else message

    def schema(self, value: Any, control: re.Pattern[str] | None) -> Any:
        """A tool with those of its texts between marks that hold control strings: templates compare the others."""
        if isinstance(value, str):
            hostile = control is not None and control.search(value)
            return f"{self.tool}{value}{self.close}" if hostile else value
        if isinstance(value, Mapping):
            return {self.schema(key, control): self.schema(inner, control) for key, inner in value.items()}
        return [self.schema(inner, control) for inner in value] if isinstance(value, list) else value

    def stretches(self, marked: str) -> tuple[str, list[tuple[str, int, int]]]:
        """The text without its marks, and of each text between them the opening mark, start and end."""
        plain: list[str] = []
        found: list[tuple[str, int, int]] = []
        length, begun = 0, ("", 0)
        for piece in re.split(f"([{self.data}{self.answer}{self.tool}{self.close}])", marked):
            if piece == self.close:
                if begun[0]:
                    found.append((*begun, length))
                begun = ("", 0)
            elif piece and piece in (self.data, self.answer, self.tool):
                begun = (piece, length)
            else:
                plain.append(piece)
                length += len(piece)
        return "".join(plain), found


def render_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    tools: Sequence[ToolSchema] = (),
    generation_prompt: bool = True,
    continues: bool = False,
    kwargs: Mapping[str, Any] | None = None,
) -> RenderedChat:
    """The text of a chat, with the places of what was said in it.

    Args:
        messages: in the normal form.
        tokenizer: has the chat template.
        tools: in the normal form.
        generation_prompt: whether the assistant's next turn is opened behind the last message.
        continues: the last message is the assistant's and begun: the text ends where it ends, its turn left open.
        kwargs: arguments of the template over those of the job.

    Raises:
        DataError: where the template refuses the chat, or loses, doubles or rewrites a text of it.
    """
    marks, control = _marks([*messages, *tools]), tokenizer.content.control
    shown = [dict(message) for message in messages]
    tail = ""
    if continues:
        content = str(shown[-1]["content"])
        kept = content.rstrip()
        tail = content[len(kept) :]
        shown[-1]["content"] = kept + marks.stop
    opened = generation_prompt and not continues
    render = partial(tokenizer.render_chat, generation_prompt=opened, kwargs=kwargs)
    plain = render(shown, tools=tools)
    marked = _marked(render, [marks.calls(marks.message(message), control) for message in shown], [
        marks.schema(tool, control) for tool in tools
    ])  # fmt: skip
    text, stretches = marks.stretches(marked)
    if text == plain:
        _refuse_lost(shown, [plain[start:end] for mark, start, end in stretches if mark != marks.tool])
    elif any(marks.schema(tool, control) != tool for tool in tools) or any(
        marks.calls(message, control) != message for message in shown
    ):
        raise DataError(
            "the chat template rewrites a text of a tool or call that holds a control string, so it can't be told from "
            "control tokens",
            fix="leave such strings out of the tools' descriptions, or use another template",
        )
    else:
        stretches = _one_by_one(shown, plain, marks, lambda chat: _marked(render, chat, tools), control)
    _refuse_lost_tools(shown, tools, plain)
    data = tuple((start, end) for mark, start, end in stretches if mark != marks.answer)
    found = RenderedChat(plain, data, tuple((start, end) for mark, start, end in stretches if mark == marks.answer))
    if not continues:
        return found
    before, mark, _ = plain.partition(marks.stop)
    if not mark:
        raise DataError(
            "the chat template rewrites the answer that the last message begins",
            fix="drop that message, or use another template",
        )
    return found.until(len(before), tail)


def _refuse_lost(messages: Sequence[Message], found: Sequence[str]) -> None:
    """Every content comes out once; of all but system messages, which some templates move, in order."""
    wanted = [(place, core) for place, it in enumerate(messages) if (core := _core(it))]
    spelled = {spelling: core for _, core in wanted for spelling in _spellings(core)[::-1]}
    said = [spelled.get(text, text) for text in found]
    moved = {core for place, core in wanted if messages[place]["role"] == "system"}
    cores = [core for _, core in wanted]
    for place, core in wanted:
        if said.count(core) != cores.count(core):
            raise _lost(place, messages[place], twice=said.count(core) > 1)
    if [text for text in said if text not in moved] != [core for core in cores if core not in moved]:
        raise DataError("the chat template changes the order of the messages", fix="use a template that keeps it")


def _marked(render: Callable[..., str], messages: Sequence[Message], tools: Sequence[ToolSchema]) -> str:
    """The text with marks; nothing where they change what the template does so much that it refuses."""
    try:
        return render(messages, tools=tools)
    except DataError:
        return ""


def _one_by_one(
    messages: Sequence[Message],
    plain: str,
    marks: _TextMarks,
    marked: Callable[[Sequence[Message]], str],
    control: re.Pattern[str] | None,
) -> list[tuple[str, int, int]]:
    """Places of the texts when they can't all be marked: each marked alone, else looked for behind the one before.

    Raises DataError for a text that isn't there, and for one with control strings that might stand elsewhere.
    """
    found: list[tuple[str, int, int]] = []
    after = 0
    for place, message in enumerate(messages):
        if not (core := _core(message)):
            continue
        alone = [*messages[:place], marks.message(message), *messages[place + 1 :]]
        text, stretches = marks.stretches(marked(alone))
        if text != plain or len(stretches) != 1:
            system = message["role"] == "system"
            places = [(plain.find(spelled, 0 if system else after), spelled) for spelled in _spellings(core)]
            at, spelled = next(((at, spelled) for at, spelled in places if at >= 0), (-1, ""))
            if at < 0 or (control is not None and control.search(spelled) and plain.count(spelled) > 1):
                raise _lost(place, message)
            stretches = [(marks.answer if message["role"] == "assistant" else marks.data, at, at + len(spelled))]
            after = after if system else at + len(spelled)
        found += stretches
    return sorted(found, key=lambda stretch: stretch[1])


def _core(message: Message) -> str:
    """A content without the white space around it and, of an answer, without its thoughts."""
    text = str(message.get("content") or "").strip()
    return text.rpartition(_THOUGHT_END)[2].strip() if message["role"] == "assistant" else text


def _refuse_lost_tools(messages: Sequence[Message], tools: Sequence[ToolSchema], plain: str) -> None:
    """Tools by their names, calls by name and texts, and the last answer's reasoning have to be in the text."""
    for tool in tools:
        if tool["function"]["name"] not in plain:
            raise DataError(
                f"the chat template leaves out the tool {tool['function']['name']!r}",
                fix="use a template that shows tools, or drop the column",
            )
    for place, message in enumerate(messages):
        for text in list(texts_of(message))[bool(message.get("content")) :]:
            if not any(spelling in plain for spelling in _spellings(text)):
                raise _lost(place, message, what="a call of")
    last = messages[-1]
    reasoning = str(last.get("reasoning_content") or "").strip()
    if reasoning and reasoning not in plain:
        raise DataError(
            f"the chat template leaves out the reasoning of message {len(messages) - 1}",
            fix="write it into the content, as the model writes it (<think>…</think>), or use a template that shows it",
        )


def _spellings(text: str) -> tuple[str, ...]:
    """A text as it is, and as JSON writes it."""
    return text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]


def _lost(place: int, message: Message, *, twice: bool = False, what: str = "") -> DataError:
    does = "writes twice" if twice else "leaves out or rewrites"
    whose = f"{what} " if what else ""
    return DataError(
        f"the chat template {does} {whose}message {place} (role {message['role']})",
        fix="use a template that shows it, or leave such rows out",
    )


def _edges(text: str) -> tuple[str, str, str]:
    """White space before, text, white space behind."""
    inner = text.strip()
    start = text.index(inner)
    return text[:start], inner, text[start + len(inner) :]


def _marks(messages: Sequence[Mapping[str, Any]]) -> _TextMarks:
    said = json.dumps(list(messages), ensure_ascii=False, default=str)
    for code in _PRIVATE:
        characters = [chr(code + step) for step in range(5)]
        if not any(character in said for character in characters):
            return _TextMarks(*characters)
    raise DataError("the messages use every private-use character", fix="leave such rows out")


# ---- Generation blocks of a chat template: what `{% generation %}` says is the assistant's
# Owns the marked twin of a template: a character stands at each end of its blocks, where no rule of Jinja about white
# space sees it. What the twin writes counts only where it is the template's own text apart from the marks.


_OPEN, _CLOSE = "\uf8fe", "\uf8ff"
_BEGINS = re.compile(r"(\{%[-+]?\s*generation\s*(-?)[-+]?%\})(\n?)")
_ENDS = re.compile(r"(?:(?<=\n)[ \t]*(?!\{%\+))?(\{%([-+]?)\s*endgeneration\s*[-+]?%\})")


def generation_blocks(
    whole: str, tokenizer: Tokenizer, render: Callable[[Tokenizer], str]
) -> list[tuple[int, int]] | None:
    """Start and end of each block in a rendered chat, in characters; None where the template has none that are sure.

    Args:
        whole: the chat as the tokenizer's template writes it.
        render: writes the same chat by another tokenizer.
    """
    marked = _with_marks(tokenizer)
    if marked is None or _OPEN in whole or _CLOSE in whole:
        return None
    try:
        text = render(marked)
    except DataError:
        return None
    if text.replace(_OPEN, "").replace(_CLOSE, "") != whole:
        return None
    pieces = re.split(f"([{_OPEN}{_CLOSE}])", text)
    if pieces[1::2] != [_OPEN, _CLOSE] * (len(pieces) // 4):  # one within another
        return None
    ends = [0]
    for said in pieces[::2]:
        ends.append(ends[-1] + len(said))
    return list(zip(ends[1:-1:2], ends[2::2], strict=False))


@lru_cache(maxsize=8)
def _with_marks(tokenizer: Tokenizer) -> Tokenizer | None:
    """The tokenizer with its template's blocks marked; None where there are none."""
    text = tokenizer.chat_template or ""
    begun = _BEGINS.sub(lambda tag: f"{tag[1]}{tag[3]}{{{{ '{_OPEN}' {tag[2]}}}}}", text)
    marked = _ENDS.sub(lambda tag: f"{{{{{'-' if tag[2] == '-' else ''} '{_CLOSE}' }}}}{tag[1]}", begun)
    return tokenizer.with_template(marked, tokenizer.kwargs) if marked != text else None
