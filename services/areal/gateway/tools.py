"""Function tools of a request: read, compared, and the calls of them parsed from answers.

Each family of chat templates writes calls in a form of its own. What can't be parsed as a call of a tool that the
request names stays text: nothing is guessed, and nothing parsed is ever encoded again. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson
import xxhash

from areal.gateway.faults import CallRefusal

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


def parse_tools(given: Any) -> tuple[Tool, ...]:
    """Tools of a chat request, as they are rendered. Raises Refused with the place of what is wrong."""
    if given is None:
        return ()
    if not isinstance(given, list):
        raise CallRefusal("tools is no list", field="tools")
    for number, entry in enumerate(given):
        place = f"tools[{number}]"
        function = entry.get("function") if isinstance(entry, Mapping) and entry.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise CallRefusal(f"{place} is no function with a name; other tools are not known here", field=place)
        if not isinstance(function.get("parameters") or {}, Mapping):
            raise CallRefusal(f"{place}.function.parameters is no object", field=f"{place}.function.parameters")
    return tuple(given)


def digest_of(tools: Sequence[Tool]) -> str:
    """Of tools, whatever the order of their keys; empty for none."""
    if not tools:
        return ""
    return xxhash.xxh3_64_hexdigest(orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS))


def names_of(tools: Sequence[Tool]) -> frozenset[str]:
    """What may be called."""
    return frozenset(str(tool["function"]["name"]) for tool in tools)


def one_call(text: str, names: Collection[str]) -> WrittenToolCall | None:
    """The call that a text is; None when it is none."""
    try:
        written = json.loads(text)
    except ValueError:
        return None
    if not isinstance(written, dict) or written.get("name") not in names:
        return None
    arguments = written.get("arguments", written.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, dict):
        return None
    return WrittenToolCall(written["name"], json.dumps(arguments, ensure_ascii=False))


def whole_answer(text: str, names: Collection[str]) -> list[WrittenToolCall]:
    """The calls of an answer that is nothing else, in Llama's form; empty when it is something else."""
    decoder, calls, rest = json.JSONDecoder(), [], text.strip()
    while rest:
        try:
            _, end = decoder.raw_decode(rest)
        except ValueError:
            return []
        call = one_call(rest[:end], names)
        if call is None:
            return []
        calls.append(call)
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return calls
