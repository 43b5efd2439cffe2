"""Encoding of rendered chats in which what users, systems and tools say is data.

A control string such as `<|im_end|>` inside a message becomes the tokens of its characters, never the control token;
the template's own control strings become control tokens. One rule for prompts, later turns and the gateway. The shape
in which a template reads messages is found by rendering probes, not by reading it: some show a text only as a part,
take arguments of calls only as JSON text, or refuse ids that aren't nine letters and digits. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from areal.errors import DataError
from areal.values.generation import Ids, as_ids

if TYPE_CHECKING:
    from areal.workflow.tokenizer import Tokenizer

Stretches = tuple[tuple[int, int], ...]
_BLANK = re.compile(r"[\s\u2581]*")  # added tokens of mere white space are no control tokens


class RenderedChat(str):
    """The text of a chat, and the stretches of it [start, end) that were said: `data` by users, systems and tools,
    `answers` by the assistant."""

    __slots__ = ("answers", "data")
    data: Stretches
    answers: Stretches

    def __new__(cls, text: str, data: Stretches = (), answers: Stretches = ()) -> RenderedChat:
        made = super().__new__(cls, text)
        made.data, made.answers = data, answers
        return made

    def after(self, start: int) -> RenderedChat:
        """Suffix from character `start`."""
        return RenderedChat(self[start:], _moved(self.data, start), _moved(self.answers, start))

    def replaced(self, mark: str, text: str) -> RenderedChat:
        """With a text that nobody said in the place of each mark, a character."""
        places = [place for place, character in enumerate(self) if character == mark]

        def moved(some: Stretches) -> Stretches:
            found = []
            for low, high in some:
                inner = [place for place in places if low <= place < high]
                for begin, end in zip([low, *(place + 1 for place in inner)], [*inner, high], strict=True):
                    by = bisect_left(places, begin) * (len(text) - 1)
                    found += [(begin + by, end + by)] * (begin < end)
            return tuple(found)

        return RenderedChat(self.replace(mark, text), moved(self.data), moved(self.answers))

    def until(self, end: int, behind: str = "") -> RenderedChat:
        """Prefix up to character `end`, with a text behind it."""
        cut = (tuple((low, min(high, end)) for low, high in some if low < end) for some in (self.data, self.answers))
        return RenderedChat(self[:end] + behind, *cut)


class ContentEncoder:
    """Token ids of rendered chats."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._plain = tokenizer.without_added()
        self._control = sorted((text for text in tokenizer.added_texts if not _BLANK.fullmatch(text)), key=len)[::-1]
        self.control = _any_of(self._control)

    @cached_property
    def _turn_tokens(self) -> re.Pattern[str] | None:
        """The control strings that begin and end turns. An answer may hold others: it thinks and calls by them."""
        own = self._tokenizer.turns.skeleton
        return _any_of([text for text in self._control if text in own and "think" not in text.lower()])

    def encode(self, rendered: RenderedChat) -> Ids:
        """Token ids `[tokens]`: as the tokenizer encodes the text, but for control strings that touch data."""
        pieces: list[Ids] = []
        done = 0
        for start, end in self._injected(rendered):
            pieces.append(self._tokenizer.encode(rendered[done:start], special=False))
            pieces.append(as_ids(self._plain.encode(rendered[start:end], add_special_tokens=False).ids))
            done = end
        pieces.append(self._tokenizer.encode(rendered[done:], special=False))
        return as_ids(np.concatenate(pieces))

    def _injected(self, rendered: RenderedChat) -> Iterator[tuple[int, int]]:
        """Control strings that lie in data, or reach into it.

        A string that reaches in is broken where the data begins or ends; looking goes on right there, for what the
        template says after it may begin a control string of its own.
        """
        if self.control is None:
            return
        place = 0
        while found := self.control.search(rendered, place):
            start, end = found.span()
            touched = next((stretch for stretch in rendered.data if stretch[0] < end and start < stretch[1]), None)
            if touched is None and rendered.answers and (turns := self._turn_tokens) and turns.fullmatch(found[0]):
                touched = next((some for some in rendered.answers if some[0] < end and start < some[1]), None)
            if touched is not None:
                start, end = max(start, touched[0]), min(end, touched[1])
                yield start, end
            place = end


def common_start(one: str, other: str) -> int:
    """Length of the common prefix of two texts, in characters."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _any_of(texts: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(re.escape(text) for text in texts)) if texts else None


def _moved(stretches: Stretches, start: int) -> Stretches:
    return tuple((max(0, low - start), high - start) for low, high in stretches if high > start)


Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
_MARK = "qz7arealq"
_LONG_ID = "call_areal.0_0_0"
_WRITTEN_PARTS = ("{'type': 'text'", '{"type": "text"')  # a list of parts taken for a text
_SHORT = re.compile(r"[A-Za-z0-9]{9}")
PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "What."}}},
    },
}


@dataclass(frozen=True)
class ChatShape:
    """How messages in the normal form are changed for a template."""

    parts: bool = False  # a text is a list of one part
    argument_text: bool = False  # arguments of calls are JSON text
    short_ids: bool = False  # ids of calls are nine letters and digits

    def shaped(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages as the template reads them."""
        return [self._message(message) for message in messages]

    def with_calls(self, render: Render) -> ChatShape:
        """The shape of chats with calls of tools; this one where the template writes none in any shape."""
        tried = [
            replace(self, argument_text=text, short_ids=short) for text in (False, True) for short in (False, True)
        ]
        return next((shape for shape in tried if shape._writes_calls(render)), self)

    def _writes_calls(self, render: Render) -> bool:
        call = {"id": _LONG_ID, "type": "function", "function": {"name": "look", "arguments": {"x": _MARK}}}
        chat: list[dict[str, Any]] = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "8", "tool_call_id": _LONG_ID},
        ]
        return any(_shows(render, self.shaped(some), [PROBE_TOOL]) for some in (chat, chat[:2]))

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        shown = dict(message)
        if self.parts and isinstance(shown.get("content"), str):
            shown["content"] = [{"type": "text", "text": shown["content"]}] if shown["content"] else []
        if self.short_ids and shown.get("tool_call_id"):
            shown["tool_call_id"] = _short(shown["tool_call_id"])
        if shown.get("tool_calls") and (self.argument_text or self.short_ids):
            shown["tool_calls"] = [self._call(call) for call in shown["tool_calls"]]
        return shown

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        if self.argument_text and not isinstance(function.get("arguments"), str):
            function["arguments"] = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
        changed = {**call, "function": function}
        return changed | ({"id": _short(str(call.get("id") or ""))} if self.short_ids else {})


def shape_of(render: Render) -> ChatShape:
    """The shape in which a template shows a user's text."""
    for tools in ([], [PROBE_TOOL]):
        for shape in (ChatShape(), ChatShape(parts=True)):
            if _shows(render, shape.shaped([{"role": "user", "content": _MARK}]), tools):
                return shape
    return ChatShape()


def _shows(render: Render, chat: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> bool:
    try:
        text = render(chat, tools)
    except DataError:
        return False
    return _MARK in text and not any(part in text for part in _WRITTEN_PARTS)


def _short(name: str) -> str:
    """An id of nine letters and digits: the same one for the same id."""
    return name if _SHORT.fullmatch(name) else hashlib.sha256(name.encode()).hexdigest()[:9]
