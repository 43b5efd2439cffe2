"""Canonical chat messages and their semantic equality.

Pure. What a client sends back about an answer is only compared with what was sent, never encoded again: clients drop
fields, reorder keys and turn null into "" or a line end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from areal.gateway.faults import CallRefusal

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to have called. `arguments` is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str

    @property
    def canonical(self) -> tuple[str, str]:
        """What is called, whatever the spelling of its JSON."""
        try:
            return self.name, json.dumps(json.loads(self.arguments or "{}"), sort_keys=True)
        except ValueError:
            return self.name, self.arguments.strip()

    def same(self, other: ToolCall) -> bool:
        """By id, else by what is called."""
        return (bool(self.id) and self.id == other.id) or self.canonical == other.canonical


@dataclass(frozen=True)
class Message:
    """One message. `reasoning` is None where a client says nothing about it."""

    role: str
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str | None = None

    def same(self, other: Message) -> bool:
        """Whether two messages say the same: white space around texts, and reasoning that one lacks, don't count."""
        if self.role != other.role or self.text.strip() != other.text.strip():
            return False
        if self.role == "tool" and self.tool_call_id != other.tool_call_id:
            return False
        if (
            None not in (self.reasoning, other.reasoning)
            and (self.reasoning or "").strip() != (other.reasoning or "").strip()
        ):
            return False
        return len(self.tool_calls) == len(other.tool_calls) and all(
            ours.same(theirs) for ours, theirs in zip(self.tool_calls, other.tool_calls, strict=True)
        )

    def as_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        shown: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.tool_calls:
            shown["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _object(call)}}
                for call in self.tool_calls
            ]
        if self.tool_call_id:
            shown["tool_call_id"] = self.tool_call_id
        if self.reasoning:
            shown["reasoning_content"] = self.reasoning
        return shown


def parse_messages(given: Any) -> tuple[Message, ...]:
    """Messages of a chat request. Raises Refused with the place of what is wrong."""
    if not isinstance(given, list) or not given:
        raise CallRefusal("messages has to be a list with at least one message", field="messages")
    return tuple(_message(entry, f"messages[{number}]") for number, entry in enumerate(given))


def _message(entry: Any, place: str) -> Message:
    if not isinstance(entry, Mapping):
        raise CallRefusal(f"{place} is no object", field=place)
    role = "system" if entry.get("role") == "developer" else entry.get("role")
    if role not in ROLES:
        raise CallRefusal(f"{place}.role is {role!r}; known are {', '.join(ROLES)}", field=f"{place}.role")
    reasoning = entry.get("reasoning_content")
    calls = entry.get("tool_calls") or []
    if not isinstance(calls, list):
        raise CallRefusal(f"{place}.tool_calls is no list", field=f"{place}.tool_calls")
    return Message(
        role=role,
        text=_text(entry.get("content"), f"{place}.content"),
        tool_calls=tuple(_call(call, f"{place}.tool_calls[{number}]") for number, call in enumerate(calls)),
        tool_call_id=str(entry.get("tool_call_id") or ""),
        reasoning=reasoning if isinstance(reasoning, str) else None,
    )


def _text(content: Any, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise CallRefusal(f"{place} is a {type(content).__name__}, not a text", field=place)
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise CallRefusal(f"{place}[{number}] is {kind!r}; this model reads text only", field=f"{place}[{number}]")
        texts.append(part["text"])
    return "".join(texts)


def _call(entry: Any, place: str) -> ToolCall:
    function = entry.get("function") if isinstance(entry, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise CallRefusal(f"{place} names no function", field=place)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(str(entry.get("id") or ""), function["name"], text)


def _object(call: ToolCall) -> Any:
    """Arguments as the object they are; the text where they are no JSON."""
    try:
        return json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
