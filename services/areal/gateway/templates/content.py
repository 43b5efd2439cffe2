"""Encoding of rendered chats in which what users, systems and tools say is data.

A control string such as `<|im_end|>` inside a message becomes the tokens of its characters, never the control token;
the template's own control strings become control tokens. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from areal.gateway.faults import CallRefusal
from areal.values.generation import Ids, as_ids
from areal.workflow.tokenizer import Tokenizer

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
DATA_ROLES = frozenset({"system", "user", "tool"})  # an assistant's text was control tokens once, and may be so again
_PRIVATE = range(0xE000, 0xF8FF, 2)  # private-use characters, two for a pair of marks


@dataclass(frozen=True)
class RenderedChat:
    """A rendered chat, and the stretches of it [start, end) that are data."""

    text: str
    data: tuple[tuple[int, int], ...]

    def after(self, start: int) -> RenderedChat:
        """What follows character `start`."""
        moved = tuple((max(0, low - start), high - start) for low, high in self.data if high > start)
        return RenderedChat(self.text[start:], moved)


def render(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template: Render,
    control: re.Pattern[str] | None = None,
) -> RenderedChat:
    """Render messages and tools and find where their data stands. Raises Refused where the template alters a text.

    Of tools only the texts are marked that `control` finds something in: templates compare the others.
    """
    opening, closing = _marks([*messages, *tools])

    def guarded(value: Any) -> Any:
        if isinstance(value, str):
            return f"{opening}{value}{closing}" if control is not None and control.search(value) else value
        if isinstance(value, Mapping):
            return {guarded(key): guarded(inner) for key, inner in value.items()}
        return [guarded(inner) for inner in value] if isinstance(value, list) else value

    marked = template([_marked(message, opening, closing) for message in messages], [guarded(tool) for tool in tools])
    plain: list[str] = []
    data: list[tuple[int, int]] = []
    length, begun = 0, None
    for piece in re.split(f"([{opening}{closing}])", marked):
        if piece == opening:
            begun = length
        elif piece == closing:
            if begun is not None and length > begun:
                data.append((begun, length))
            begun = None
        else:
            plain.append(piece)
            length += len(piece)
    text = "".join(plain)
    if text != template(messages, tools):
        raise CallRefusal(
            "the chat template rewrites the text of a message or tool, so it can't be told from control tokens",
            code="template_alters_content",
            field="messages",
        )
    return RenderedChat(text, tuple(data))


class ContentEncoder:
    """Token ids of rendered chats."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._plain = tokenizer.without_added()
        texts = sorted(tokenizer.added_texts, key=len, reverse=True)
        self.control = re.compile("|".join(re.escape(text) for text in texts)) if texts else None

    def encode(self, rendered: RenderedChat) -> Ids:
        """Token ids `[tokens]`: as the tokenizer encodes the text, but for control strings that touch data."""
        pieces: list[Ids] = []
        done = 0
        for start, end in self._injected(rendered):
            pieces.append(self._tokenizer.encode(rendered.text[done:start], special=False))
            pieces.append(as_ids(self._plain.encode(rendered.text[start:end], add_special_tokens=False).ids))
            done = end
        pieces.append(self._tokenizer.encode(rendered.text[done:], special=False))
        return as_ids(np.concatenate(pieces))

    def _injected(self, rendered: RenderedChat) -> Iterator[tuple[int, int]]:
        """Control strings that lie in data, or reach into it.

        A string that reaches in is broken where the data begins or ends; looking goes on right there, for what the
        template says after it may begin a control string of its own.
        """
        if self.control is None:
            return
        place = 0
        while found := self.control.search(rendered.text, place):
            start, end = found.span()
            touched = next(((low, high) for low, high in rendered.data if low < end and start < high), None)
            if touched is not None:
                start, end = max(start, touched[0]), min(end, touched[1])
                yield start, end
            place = end


def _marked(message: Mapping[str, Any], opening: str, closing: str) -> Mapping[str, Any]:
    """White space at the edges stays outside of the marks: many templates trim it."""
    content = message.get("content")
    if message["role"] not in DATA_ROLES or not isinstance(content, str) or not content.strip():
        return message
    before, inner, behind = _edges(content)
    return {**message, "content": f"{before}{opening}{inner}{closing}{behind}"}


def _edges(text: str) -> tuple[str, str, str]:
    """White space before, text, white space behind."""
    inner = text.strip()
    start = text.index(inner)
    return text[:start], inner, text[start + len(inner) :]


def _marks(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Two characters that no message holds."""
    said = json.dumps(messages, ensure_ascii=False)  # characters as they are, which a repr escapes
    for code in _PRIVATE:
        if chr(code) not in said and chr(code + 1) not in said:
            return chr(code), chr(code + 1)
    raise CallRefusal("the messages use every private-use character", field="messages")
