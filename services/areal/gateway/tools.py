"""Function tools of a request: read, compared, and the calls of them parsed from answers.

Each family of chat templates writes calls in a form of its own. What can't be parsed as a call of a tool that the
request names stays text: nothing is guessed, and nothing parsed is ever encoded again. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson
import xxhash

from areal.gateway.faults import CallRefusal
from areal.values.strict_json import first_json, members, read_json

Tool = Mapping[str, Any]


class Form(Enum):
    """How a family writes a call."""

    HERMES = "Qwen and Hermes: JSON in <tool_call>…</tool_call>"
    LLAMA = "Llama 3: the answer is JSON with a name and parameters"


OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class WrittenToolCall:
    """A call as the model wrote it: the arguments as JSON."""

    name: str
    arguments: str


def form_of(chat_template: str) -> Form | None:
    """The form that a chat template asks for; None for one that is not known here."""
    if OPEN in chat_template and "<function=" not in chat_template:
        return Form.HERMES
    if "tools_in_user_message" in chat_template or "<|python_tag|>" in chat_template:
        return Form.LLAMA
    return None


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
        tool = _function_tool(entry, place)
        if tool is None:
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


def names_of(tools: Sequence[Tool]) -> frozenset[str]:
    """What may be called."""
    return frozenset(str(tool["function"]["name"]) for tool in tools)


def one_call(text: str, names: Collection[str]) -> WrittenToolCall | None:
    """The call that a text is, its arguments as they are written; None when it is none."""
    try:
        written = members(text)
        name, _ = written.get("name", (None, ""))
        arguments, own = written.get("arguments", written.get("parameters", ({}, "{}")))
        if isinstance(arguments, str):
            arguments, own = read_json(arguments), arguments
    except ValueError:
        return None
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return WrittenToolCall(name, own)


def whole_answer(text: str, names: Collection[str]) -> list[WrittenToolCall]:
    """The calls of an answer that is nothing else, in Llama's form; empty when it is something else."""
    calls, rest = [], text.strip()
    while rest:
        try:
            _, end = first_json(rest)
        except ValueError:
            return []
        call = one_call(rest[:end], names)
        if call is None:
            return []
        calls.append(call)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return calls
