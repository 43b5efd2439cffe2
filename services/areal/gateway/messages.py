"""Canonical chat messages and their semantic equality.

Pure. What a client sends back about an answer is only compared with what was sent, never encoded again: clients drop
fields, reorder keys and turn null into "" or a line end.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson
import xxhash

from areal.errors import DataError
from areal.gateway.faults import CallRefusal
from areal.values.images import MARK, Image, image_of
from areal.values.strict_json import read_json
from areal.workflow.rows.messages import MessageReader, PlaceError


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
            return self.name, json.dumps(read_json(self.arguments or "{}"), sort_keys=True)
        except ValueError:
            return self.name, self.arguments.strip()

    def same(self, other: "ToolCall") -> bool:
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
    name: str = ""
    images: tuple[Image, ...] = ()  # that the marks in its text stand for

    def same(self, other: "Message") -> bool:
        """Whether two messages say the same: white space around texts, and reasoning that one lacks, don't count."""
        if self.role != other.role or self.text.strip() != other.text.strip() or self.images != other.images:
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
        if self.name:
            shown["name"] = self.name
        if self.tool_call_id:
            shown["tool_call_id"] = self.tool_call_id
        if self.reasoning:
            shown["reasoning_content"] = self.reasoning
        return shown


def parse_messages(given: Any, place: str = "messages", *, images: bool = False) -> tuple[Message, ...]:
    """Messages of a request, in OpenAI's form or Anthropic's; `images` says whether the model reads some.

    Raises Refused with the place of what is wrong.
    """
    if not isinstance(given, list) or not given:
        raise CallRefusal(f"{place} has to be a list with at least one message", field=place)
    return read_messages([(f"{place}[{number}]", entry) for number, entry in enumerate(given)], images=images)


def read_messages(entries: Iterable[tuple[str, Any]], *, images: bool = False) -> tuple[Message, ...]:
    """Messages that stand at these places of a request. Raises Refused."""
    reader = MessageReader(verbatim=True, images=[] if images else None)
    try:
        for place, entry in entries:
            reader.read(entry, place)
    except PlaceError as error:
        raise CallRefusal(error.message, field=error.place) from None
    try:
        seen = iter([image_of(image) for image in reader.images or ()])
    except DataError as error:
        raise CallRefusal(error.message, field="messages") from None
    return tuple(_message(message, seen) for message in reader.messages)


def _message(read: Mapping[str, Any], seen: Iterator[Image]) -> Message:
    return Message(
        images=tuple(islice(seen, read["content"].count(MARK))),
        role=read["role"],
        text=read["content"],
        tool_calls=tuple(
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in read.get("tool_calls", ())
        ),
        tool_call_id=read.get("tool_call_id", ""),
        reasoning=read.get("reasoning_content"),
        name=read.get("name", ""),
    )


def _object(call: ToolCall) -> Any:
    """Arguments as the object they are; the text where they are no JSON."""
    try:
        return read_json(call.arguments or "{}")
    except ValueError:
        return call.arguments


# ---- Function tools of a request: read and compared. Pure


Tool = Mapping[str, Any]


@dataclass(frozen=True)
class ToolList:
    """Tools of a request in OpenAI's form, as they are rendered.

    `dropped` names those that are no functions of the client's; `named` tells of a function out of a namespace, by the
    name that the model is told, its namespace and its own name.
    """

    tools: tuple[Tool, ...] = ()
    dropped: tuple[str, ...] = ()
    named: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def parse_tools(given: Any) -> ToolList:
    """Tools of a request, in any dialect. Raises Refused with the place of what is wrong."""
    if not isinstance(given, list | None):
        raise CallRefusal("tools is no list", field="tools")
    flat: list[tuple[str, str, Any]] = []  # (place, namespace, entry)
    for number, entry in enumerate(given or ()):
        inner = entry.get("tools") if isinstance(entry, Mapping) and entry.get("type") == "namespace" else None
        if isinstance(inner, list):
            space = str(entry.get("name") or "")
            flat += [(f"tools[{number}].tools[{place}]", space, tool) for place, tool in enumerate(inner)]
        else:
            flat.append((f"tools[{number}]", "", entry))
    tools: dict[str, Tool] = {}
    dropped: list[str] = []
    named: dict[str, tuple[str, str]] = {}
    for place, space, entry in flat:
        if (tool := _function_tool(entry, place)) is None:
            dropped.append(f"{place}({entry.get('type')})")
            continue
        own = tool["function"]["name"]
        told = own if own not in tools else f"{space}__{own}" if space else f"{own}__{len(tools)}"
        if space:
            named[told] = (space, own)
        tools[told] = tool if told == own else {**tool, "function": {**tool["function"], "name": told}}
    return ToolList(tuple(tools.values()), tuple(dropped), named)


def _function_tool(entry: Any, place: str) -> Tool | None:
    """A function of the client's own; None for tools that only a vendor has."""
    if not isinstance(entry, Mapping):
        raise CallRefusal(f"{place} is no object", field=place)
    kind, function = entry.get("type"), entry.get("function")
    if kind not in (None, "function") and not (kind == "custom" and "input_schema" in entry):
        return None
    if kind == "function" and isinstance(function, Mapping):
        tool, here = dict(entry), f"{place}.function"
    else:
        function = {"name": entry.get("name"), "parameters": entry.get("parameters", entry.get("input_schema")) or {}}
        if entry.get("description"):
            function["description"] = entry["description"]
        tool, here = {"type": "function", "function": function}, place
    if not isinstance(function.get("name"), str):
        raise CallRefusal(f"{place} is no function with a name", field=place)
    if not isinstance(function.get("parameters") or {}, Mapping):
        raise CallRefusal(f"{here}.parameters is no object", field=f"{here}.parameters")
    return tool


def digest_of(tools: Sequence[Tool]) -> str:
    """Of tools, whatever the order of their keys; empty for none."""
    if not tools:
        return ""
    return xxhash.xxh3_64_hexdigest(orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS))


def names_of(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    """What may be called, with the schema of its parameters."""
    return {str(tool["function"]["name"]): tool["function"].get("parameters") or {} for tool in tools}
