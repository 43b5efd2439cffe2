"""Rendering of chats in the normal form by a model's chat template, with proof that no text was lost.

A template may drop a message whose shape it does not know, or write it twice, without a word. So every text carries a
pair of marks through the template and has to come out once and in order; what does not is refused, with the message
named. Pure but for the template, which is the model's own code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from areal.errors import DataError
from areal.workflow.rows.messages import Message, ToolSchema, texts_of
from areal.workflow.tokenizer import Tokenizer

_PRIVATE = range(0xE000, 0xF8FF, 3)  # private-use characters: three for a set of marks
_THOUGHT_END = "</think>"  # templates that know the tags drop earlier turns' thoughts


def render_chat(
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    tools: Sequence[ToolSchema] = (),
    generation_prompt: bool = True,
    continues: bool = False,
) -> str:
    """The text of a chat.

    Args:
        messages: in the normal form.
        tokenizer: has the chat template.
        tools: in the normal form.
        generation_prompt: whether the assistant's next turn is opened behind the last message.
        continues: the last message is the assistant's and begun: the text ends where it ends, its turn left open.

    Raises:
        DataError: where the template refuses the chat, or loses, doubles or rewrites a text of it.
    """
    opening, closing, stop = _marks(messages)
    shown = [dict(message) for message in messages]
    tail = ""
    if continues:
        content = str(shown[-1]["content"])
        kept = content.rstrip()
        tail = content[len(kept) :]
        shown[-1]["content"] = kept + stop
    opened = generation_prompt and not continues
    plain = tokenizer.render_chat(shown, generation_prompt=opened, tools=tools)
    _refuse_lost(shown, plain, _marked_text(shown, tokenizer, tools, opened, opening, closing), opening, closing)
    _refuse_lost_tools(shown, tools, plain)
    if not continues:
        return plain
    before, found, _ = plain.partition(stop)
    if not found:
        raise DataError(
            "the chat template rewrites the answer that the last message begins",
            fix="drop that message, or use another template",
        )
    return before + tail


def _marked_text(
    messages: Sequence[Message], tokenizer: Tokenizer, tools: Sequence[ToolSchema], opened: bool, low: str, high: str
) -> str | None:
    """The chat with each text between marks; None where the template refuses it so."""
    marked = []
    for message in messages:
        text = str(message.get("content") or "")
        before, inner, behind = _edges(text)
        thought, end, said = inner.rpartition(_THOUGHT_END)
        lead, core, rest = _edges(said) if message["role"] == "assistant" and end else ("", inner, "")
        inner = f"{thought}{end}{lead}{low}{core}{high}{rest}" if core else inner
        marked.append({**message, "content": f"{before}{inner}{behind}"})
    try:
        return tokenizer.render_chat(marked, generation_prompt=opened, tools=tools)
    except DataError:
        return None


def _refuse_lost(messages: Sequence[Message], plain: str, marked: str | None, low: str, high: str) -> None:
    """Every content comes out once; of all but system messages, which some templates move, in order."""
    wanted = [(place, core) for place, it in enumerate(messages) if (core := _core(it))]
    if marked is not None and re.sub(f"[{low}{high}]", "", marked) == plain:
        found = re.findall(f"{low}([^{low}{high}]*){high}", marked)
        moved = {core for place, core in wanted if messages[place]["role"] == "system"}
        if [text for text in found if text not in moved] == [core for _, core in wanted if core not in moved]:
            for place, core in wanted:
                if found.count(core) != [other for _, other in wanted].count(core):
                    raise _lost(place, messages[place], twice=found.count(core) > 1)
            return
        for place, core in wanted:
            count = found.count(core)
            if count != [other for _, other in wanted].count(core):
                raise _lost(place, messages[place], twice=count > 1)
        raise DataError("the chat template changes the order of the messages", fix="use a template that keeps it")
    after = 0  # the marks changed what the template does: look for the texts themselves
    for place, core in wanted:
        if messages[place]["role"] == "system":
            if core not in plain:
                raise _lost(place, messages[place])
            continue
        at = plain.find(core, after)
        if at < 0:
            raise _lost(place, messages[place])
        after = at + len(core)


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


def _marks(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Three characters that no message holds."""
    said = json.dumps(list(messages), ensure_ascii=False, default=str)
    for code in _PRIVATE:
        if not any(chr(code + step) in said for step in range(3)):
            return chr(code), chr(code + 1), chr(code + 2)
    raise DataError("the messages use every private-use character", fix="leave such rows out")
