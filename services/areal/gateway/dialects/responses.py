"""OpenAI's responses dialect: `POST /v1/responses`. Pure mapping; `previous_response_id` names an earlier answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal.gateway.admission import IGNORED, SAMPLED, Field, Treatment, admit, overridden, read_fields
from areal.gateway.dialects.chat import digest, flag, positive
from areal.gateway.dialects.dialect import DialectReply, DialectRequest, read_object
from areal.gateway.dialects.response_events import ResponseEvents
from areal.gateway.dialects.response_items import ended_early, item_of, items_of
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, ToolCall
from areal.gateway.session import SessionRequest
from areal.gateway.tools import parse_tools

_SHAPES = "it changes the distribution of tokens, which the loss takes to be the policy's"
_PLAIN: tuple[Any, ...] = (None, {}, {"format": {"type": "text"}})
FIELDS: Mapping[str, Field] = {
    **read_fields("model", "input", "instructions", "max_output_tokens", "stream", "tools", "previous_response_id"),
    **dict.fromkeys(("temperature", "top_p"), SAMPLED),
    **dict.fromkeys(("store", "metadata", "include", "user", "service_tier", "prompt_cache_key"), IGNORED),
    **dict.fromkeys(("safety_identifier", "reasoning", "stream_options", "prompt_cache_retention"), IGNORED),
    "truncation": Field(Treatment.REFUSED, "a history is never cut", (None, "disabled")),
    "background": Field(Treatment.REFUSED, "answers are waited for", (None, False)),
    "tool_choice": Field(Treatment.REFUSED, _SHAPES, (None, "auto", "none")),
    "parallel_tool_calls": Field(Treatment.REFUSED, _SHAPES, (None, True)),
    "text": Field(Treatment.REFUSED, _SHAPES, _PLAIN),
    "top_logprobs": Field(Treatment.REFUSED, "log-probabilities are told by chat", (None, 0)),
}
_TEXTS = ("input_text", "output_text", "text")


def parse(body: bytes, sampling: Mapping[str, float]) -> DialectRequest:
    """See `Dialect.parse`."""
    fields = read_object(body)
    admit(fields, FIELDS)
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise CallRefusal("input has to be a text or a list with at least one item", field="input")
    messages = _messages(items)
    if fields.get("instructions"):
        messages.insert(0, Message("system", str(fields["instructions"])))
    question = SessionRequest(
        messages=tuple(messages),
        digest=digest(fields),
        follows=_followed(fields.get("previous_response_id")),
        tools=parse_tools([_tool(entry, number) for number, entry in enumerate(fields.get("tools") or [])]),
        calls_tools=fields.get("tool_choice") != "none",
        max_tokens=positive(fields.get("max_output_tokens"), "max_output_tokens"),
        overridden=overridden(fields, sampling),
    )
    return DialectRequest(question, fields, flag(fields, "stream"))


def _followed(name: Any) -> int | None:
    if name is None:
        return None
    number = str(name).rpartition("_")[2]
    if not number.isdigit():
        raise CallRefusal(f"{name!r} is no response of this session", field="previous_response_id")
    return int(number)


def _messages(items: list[Any]) -> list[Message]:
    """Reasoning, text and calls in a row are one answer."""
    made: list[Message] = []
    thought: str | None = None
    for number, item in enumerate(items):
        place = f"input[{number}]"
        if not isinstance(item, Mapping):
            raise CallRefusal(f"{place} is no object", field=place)
        kind = item.get("type") or "message"
        if kind == "reasoning":
            thought = _text(item.get("content"), f"{place}.content", ("reasoning_text",)) or None
            continue
        if kind == "function_call_output":
            output = _text(item.get("output"), f"{place}.output")
            made.append(Message("tool", output, tool_call_id=str(item.get("call_id") or "")))
            continue
        said, call = "", None
        if kind == "function_call":
            role = "assistant"
            call = ToolCall(
                str(item.get("call_id") or ""), str(item.get("name") or ""), str(item.get("arguments") or "{}")
            )
        elif kind == "message":
            role = "system" if item.get("role") == "developer" else str(item.get("role"))
            if role not in ("system", "user", "assistant"):
                raise CallRefusal(f"{place}.role is {item.get('role')!r}", field=f"{place}.role")
            said = _text(item.get("content"), f"{place}.content")
        else:
            raise CallRefusal(f"{place} is {kind!r}, which is not known here", field=place)
        calls = (call,) if call is not None else ()
        last = made[-1] if made else None
        if role == "assistant" and last is not None and last.role == "assistant" and thought is None:
            made[-1] = Message("assistant", last.text + said, last.tool_calls + calls, reasoning=last.reasoning)
        else:
            made.append(Message(role, said, calls, reasoning=thought if role == "assistant" else None))
        thought = None
    return made


def _text(content: Any, place: str, kinds: tuple[str, ...] = _TEXTS) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for number, part in enumerate(content if isinstance(content, list) else [content]):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind not in kinds or not isinstance(part.get("text"), str):
            raise CallRefusal(f"{place}[{number}] is {kind!r}; this model reads text only", field=f"{place}[{number}]")
        texts.append(part["text"])
    return "".join(texts)


def _tool(entry: Any, number: int) -> dict[str, Any]:
    place = f"tools[{number}]"
    if not isinstance(entry, Mapping) or entry.get("type") != "function":
        raise CallRefusal(f"{place} is no function; other tools are not known here", field=place)
    function = {"name": entry.get("name"), "parameters": entry.get("parameters") or {}}
    if entry.get("description"):
        function["description"] = entry["description"]
    return {"type": "function", "function": function}


def error(refused: CallRefusal) -> dict[str, Any]:
    """See `Dialect.error`."""
    return refused.body


def whole(reply: DialectReply) -> dict[str, Any]:
    """See `Dialect.whole`."""
    early = ended_early(reply)
    told = {
        "status": "incomplete" if early else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if early else None,
        "output": [item_of(reply, number, part) for number, part in enumerate(items_of(reply))],
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.answer_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.answer_tokens,
        },
    }
    return head(reply) | told


def head(reply: DialectReply) -> dict[str, Any]:
    """A response that has just begun."""
    fields = reply.fields
    return {
        "id": f"resp_{reply.session}_{reply.calls[0].number}",
        "object": "response",
        "created_at": reply.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": fields.get("instructions"),
        "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": fields.get("metadata") or {},
        "model": reply.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": fields.get("previous_response_id"),
        "temperature": fields.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": fields.get("tool_choice") or "auto",
        "tools": fields.get("tools") or [],
        "top_p": fields.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def events(reply: DialectReply) -> ResponseEvents:
    """See `Dialect.events`."""
    return ResponseEvents(reply, head(reply), lambda: whole(reply))
