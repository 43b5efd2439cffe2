"""Function tools of a request: read and compared. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import xxhash

from areal.gateway.faults import CallRefusal

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
