"""Anthropic's dialect: `POST /v1/messages` and its `count_tokens`. Pure mapping."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from areal.gateway.admission import IGNORED, SAMPLED, Field, Treatment, admit, overridden, read_fields
from areal.gateway.dialects.chat import digest, flag, positive, stops
from areal.gateway.dialects.dialect import Delta, DialectReply, DialectRequest, read_object
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, ToolCall
from areal.gateway.reading import Part, Reasoning
from areal.gateway.session import SessionCall, SessionRequest
from areal.gateway.tools import parse_tools

FIELDS: Mapping[str, Field] = {
    **read_fields("model", "messages", "system", "max_tokens", "stop_sequences", "stream", "tools"),
    **dict.fromkeys(("temperature", "top_p", "top_k"), SAMPLED),
    **dict.fromkeys(("metadata", "service_tier", "thinking", "betas", "cache_control", "container"), IGNORED),
    "tool_choice": Field(Treatment.READ, "auto or none"),
}
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 413: "request_too_large"}


def parse(body: bytes, sampling: Mapping[str, float]) -> DialectRequest:
    """See `Dialect.parse`."""
    fields = read_object(body)
    admit(fields, FIELDS)
    choice = fields.get("tool_choice") or {"type": "auto"}
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind not in ("auto", "none") or choice.get("disable_parallel_tool_use"):
        raise CallRefusal(
            "tool_choice may be auto or none: all else changes the distribution of tokens, which the loss takes to be "
            "the policy's",
            code="unsupported_field",
            field="tool_choice",
        )
    question = SessionRequest(
        messages=_messages(fields),
        digest=digest(fields),
        tools=parse_tools([_tool(entry, number) for number, entry in enumerate(fields.get("tools") or [])]),
        calls_tools=kind != "none",
        max_tokens=positive(fields.get("max_tokens"), "max_tokens"),
        stop=stops(fields.get("stop_sequences"), "stop_sequences"),
        overridden=overridden(fields, sampling),
    )
    return DialectRequest(question, fields, flag(fields, "stream"))


def counted(tokens: int) -> dict[str, Any]:
    """The body that answers how long a prompt would be."""
    return {"input_tokens": tokens}


def _messages(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    given = fields.get("messages")
    if not isinstance(given, list) or not given:
        raise CallRefusal("messages has to be a list with at least one message", field="messages")
    made = [Message("system", _text(fields["system"], "system"))] if fields.get("system") else []
    for number, entry in enumerate(given):
        place = f"messages[{number}]"
        role = entry.get("role") if isinstance(entry, Mapping) else None
        if role not in ("user", "assistant", "system"):
            raise CallRefusal(f"{place}.role is {role!r}; known are user and assistant", field=f"{place}.role")
        content = entry.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise CallRefusal(f"{place}.content is no text and no list", field=f"{place}.content")
        made += _assistant(blocks, place) if role == "assistant" else _user(role, blocks, place)
    return tuple(made)


def _assistant(blocks: list[Any], place: str) -> list[Message]:
    texts, calls, thoughts = [], [], []
    for number, block in enumerate(blocks):
        here = f"{place}.content[{number}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "text":
            texts.append(_text([block], here))
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append(ToolCall(str(block.get("id") or ""), str(block.get("name") or ""), arguments))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind != "redacted_thinking":
            raise CallRefusal(f"{here} is {kind!r}, which an assistant can't say here", field=here)
    return [Message("assistant", "".join(texts), tuple(calls), reasoning="".join(thoughts) if thoughts else None)]


def _user(role: str, blocks: list[Any], place: str) -> list[Message]:
    """Results of tools are messages of their own."""
    made: list[Message] = []
    texts: list[str] = []
    for number, block in enumerate(blocks):
        here = f"{place}.content[{number}]"
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            made.append(
                Message("tool", _text(block.get("content"), here), tool_call_id=str(block.get("tool_use_id") or ""))
            )
        else:
            texts.append(_text([block], here))
    return [*made, Message(role, "".join(texts))] if texts or not made else made


def _text(content: Any, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for block in content if isinstance(content, list) else [content]:
        kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
        if kind != "text" or not isinstance(block.get("text"), str):
            raise CallRefusal(f"{place} holds {kind!r}; this model reads text only", field=place)
        texts.append(block["text"])
    return "".join(texts)


def _tool(entry: Any, number: int) -> dict[str, Any]:
    place = f"tools[{number}]"
    if not isinstance(entry, Mapping) or entry.get("type") not in (None, "custom"):
        raise CallRefusal(f"{place} is no tool of the client's own; others are not known here", field=place)
    function = {"name": entry.get("name"), "parameters": entry.get("input_schema") or {}}
    if entry.get("description"):
        function["description"] = entry["description"]
    return {"type": "function", "function": function}


def error(refused: CallRefusal) -> dict[str, Any]:
    """See `Dialect.error`."""
    kind = _KINDS.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    told = {"type": kind, "message": refused.message, "param": refused.field, "code": refused.code}
    return {"type": "error", "error": told}


def whole(reply: DialectReply) -> dict[str, Any]:
    """See `Dialect.whole`."""
    answer = reply.calls[0].answer
    assert answer is not None
    content: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text.strip() or not answer.tool_calls:
        content.append({"type": "text", "text": answer.text})
    content += [_use(call, json.loads(call.arguments)) for call in answer.tool_calls]
    return _head(reply) | {"content": content, **_ending(reply.calls[0]), "usage": _usage(reply)}


def events(reply: DialectReply) -> MessageEvents:
    """See `Dialect.events`."""
    return MessageEvents(reply)


class MessageEvents:
    """Events of a message, in Anthropic's order. See `Events`."""

    def __init__(self, reply: DialectReply) -> None:
        self._reply = reply
        self._blocks = 0
        self._open = ""  # kind of the block that is being told

    def begin(self) -> Iterator[bytes]:
        """The message without content."""
        start: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        usage = {**_usage(self._reply), "output_tokens": 0}
        yield _event("message_start", {"message": _head(self._reply) | start | {"usage": usage}})

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        """A block for each run of parts of a kind."""
        for part in delta.parts:
            yield from self._part(part)

    def _part(self, part: Part) -> Iterator[bytes]:
        if isinstance(part, ToolCall):
            yield from self._close()
            yield self._begin("tool_use", _use(part, {}))
            yield self._more({"type": "input_json_delta", "partial_json": part.arguments})
            yield from self._close()
            return
        kind = "thinking" if isinstance(part, Reasoning) else "text"
        if kind != self._open:
            yield from self._close()
            block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
            yield self._begin(kind, block)
        yield self._more({"type": f"{kind}_delta", kind: part.text})

    def finish(self, index: int) -> Iterator[bytes]:
        """Why it ended."""
        if not self._blocks:
            yield self._begin("text", {"type": "text", "text": ""})
        yield from self._close()
        usage = {"output_tokens": self._reply.answer_tokens}
        yield _event("message_delta", {"delta": _ending(self._reply.calls[0]), "usage": usage})

    def end(self) -> Iterator[bytes]:
        """The end mark."""
        yield _event("message_stop", {})

    def fault(self, error_: CallRefusal) -> Iterator[bytes]:
        """As Anthropic's API tells an error in a stream."""
        yield b"event: error\ndata: " + orjson.dumps(error(error_)) + b"\n\n"

    def _begin(self, kind: str, block: Mapping[str, Any]) -> bytes:
        self._open = kind
        self._blocks += 1
        return _event("content_block_start", {"index": self._blocks - 1, "content_block": block})

    def _more(self, delta: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _close(self) -> Iterator[bytes]:
        if self._open:
            self._open = ""
            yield _event("content_block_stop", {"index": self._blocks - 1})


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def _head(reply: DialectReply) -> dict[str, Any]:
    name = f"msg_{reply.session}_{reply.calls[0].number}"
    return {"id": name, "type": "message", "role": "assistant", "model": reply.model}


def _ending(call: SessionCall) -> dict[str, Any]:
    assert call.result is not None
    assert call.answer is not None
    if call.result.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if call.answer.tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if call.result.matched in call.question.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": call.result.matched}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _use(call: ToolCall, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _usage(reply: DialectReply) -> dict[str, int]:
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.answer_tokens}
