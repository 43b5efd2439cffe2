"""Anthropic's dialect: `POST /v1/messages` and its `count_tokens`. Pure mapping."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from areal.gateway import admission
from areal.gateway.dialects.chat import digest, flag, positive, stops
from areal.gateway.dialects.dialect import Delta, DialectReply, DialectRequest, read_object
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import ToolCall, parse_messages, parse_tools, read_messages
from areal.gateway.reading import Part, Reasoning
from areal.gateway.session import SessionCall, SessionRequest

_MOST_STOPS = 8192  # as Anthropic allows
_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}


def parse(body: bytes, rules: admission.AdmissionRules) -> DialectRequest:
    """See `Dialect.parse`."""
    fields = read_object(body)
    choice = fields.get("tool_choice")
    wanted = {"type": "auto", **choice} if isinstance(choice, Mapping) else {"type": choice}
    told = {**admission.spread(fields, "output_config"), "tool_choice": wanted["type"]}
    told["disable_parallel_tool_use"] = wanted.get("disable_parallel_tool_use")
    ignored = admission.admit(told, "messages", rules)
    listed = parse_tools(fields.get("tools"))
    given = fields.get("system")
    system = read_messages([("system", {"role": "system", "content": given})]) if given else ()
    question = SessionRequest(
        messages=(*system, *parse_messages(fields.get("messages"), images=rules.images)),
        digest=digest(fields),
        tools=listed.tools,
        calls_tools=wanted["type"] != "none",
        max_tokens=positive(fields.get("max_tokens"), "max_tokens"),
        stop=stops(fields.get("stop_sequences"), "stop_sequences", _MOST_STOPS),
        overridden=admission.overridden(fields, rules.sampling),
    )
    return DialectRequest(question, fields, flag(fields, "stream"), (*ignored, *listed.dropped))


def counted(tokens: int) -> dict[str, Any]:
    """The body that answers how long a prompt would be."""
    return {"input_tokens": tokens}


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
    content += [_use(call, orjson.Fragment(call.arguments)) for call in answer.tool_calls]
    return _head(reply) | {"content": content, **_ending(reply.calls[0]), "usage": _usage(reply), **_cleared(reply)}


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
        ending = _ending(self._reply.calls[0])
        yield _event("message_delta", {"delta": ending, "usage": usage, **_cleared(self._reply)})

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


events = MessageEvents
"""See `Dialect.events`."""


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"


def _head(reply: DialectReply) -> dict[str, Any]:
    name = f"msg_{reply.session}_{reply.calls[0].number}"
    return {"id": name, "type": "message", "role": "assistant", "model": reply.model}


def _cleared(reply: DialectReply) -> dict[str, Any]:
    """Of a context that the client wants edited nothing was cleared."""
    return {"context_management": {"applied_edits": []}} if reply.fields.get("context_management") else {}


def _ending(call: SessionCall) -> dict[str, Any]:
    assert call.result is not None
    assert call.answer is not None
    if call.result.finish_reason == "length" and not call.stopped:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if call.answer.tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if call.stopped:
        return {"stop_reason": "stop_sequence", "stop_sequence": call.stopped}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _use(call: ToolCall, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _usage(reply: DialectReply) -> dict[str, int]:
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.answer_tokens}
