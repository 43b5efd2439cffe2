"""OpenAI's chat dialect: `POST /v1/chat/completions`. Pure mapping."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import xxhash

from areal.gateway.admission import AdmissionRules, admit, overridden
from areal.gateway.dialects.dialect import Delta, DialectReply, DialectRequest, read_object
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message, ToolCall, parse_messages, parse_tools
from areal.gateway.reading import Part, Reasoning
from areal.gateway.session import SessionCall, SessionRequest

DONE = b"data: [DONE]\n\n"


def parse(body: bytes, rules: AdmissionRules) -> DialectRequest:
    """See `Dialect.parse`."""
    fields = read_object(body)
    ignored = admit(fields, "chat", rules)
    limit = "max_tokens" if fields.get("max_completion_tokens") is None else "max_completion_tokens"
    listed = parse_tools(fields.get("tools"))
    kwargs, unread = _kwargs(fields.get("chat_template_kwargs"), rules)
    question = SessionRequest(
        messages=parse_messages(fields.get("messages"), images=rules.images),
        digest=digest(fields),
        max_tokens=positive(fields.get(limit), limit),
        stop=stops(fields.get("stop"), "stop"),
        seed=whole_number(fields.get("seed"), "seed"),
        tools=listed.tools,
        calls_tools=fields.get("tool_choice") != "none",
        choices=positive(fields.get("n"), "n") or 1,
        overridden=overridden(fields, rules.sampling),
        kwargs=kwargs,
    )
    return DialectRequest(question, fields, flag(fields, "stream"), (*ignored, *listed.dropped, *unread))


def digest(fields: Mapping[str, Any]) -> int:
    """Of a request's body, whatever the order of its keys."""
    return xxhash.xxh3_64_intdigest(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS))


def _kwargs(given: Any, rules: AdmissionRules) -> tuple[dict[str, Any], list[str]]:
    """Arguments of the chat template that a request may give, and the names of the others."""
    if not isinstance(given, Mapping | None):
        raise CallRefusal("chat_template_kwargs is no object", field="chat_template_kwargs")
    taken = {name: value for name, value in (given or {}).items() if name in rules.template_names}
    return taken, [f"chat_template_kwargs.{name}" for name in given or () if name not in taken]


def positive(value: Any, field: str) -> int | None:
    """A positive number, or none given."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise CallRefusal(f"{field} is {value!r}, not a positive number", field=field)
    return value


def whole_number(value: Any, field: str) -> int | None:
    """A whole number, or none given."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise CallRefusal(f"{field} is {value!r}, not a whole number", field=field)
    return value


def flag(fields: Mapping[str, Any], field: str) -> bool:
    """Whether a field says yes."""
    if (value := fields.get(field)) is not None and not isinstance(value, bool):
        raise CallRefusal(f"{field} is {value!r}, neither true nor false", field=field)
    return bool(value)


def stops(given: Any, field: str, most: int = 4) -> tuple[str, ...]:
    """A text or several; OpenAI allows four."""
    texts = [given] if isinstance(given, str) else given or []
    if not isinstance(texts, list) or len(texts) > most or not all(isinstance(text, str) and text for text in texts):
        raise CallRefusal(f"{field} is {given!r}; give a text or up to {most}", field=field)
    return tuple(texts)


def whole(reply: DialectReply) -> dict[str, Any]:
    """See `Dialect.whole`."""
    body = head(reply, "chat.completion") | {
        "choices": [_choice(reply, index) for index in range(len(reply.calls))],
        "usage": usage(reply),
    }
    if reply.fields.get("return_token_ids"):
        body["prompt_token_ids"] = reply.calls[0].prompt_ids.tolist()
    return body


def error(refused: CallRefusal) -> dict[str, Any]:
    """See `Dialect.error`."""
    return refused.body


class ChatEvents:
    """Chunks of a chat completion. See `Events`."""

    def __init__(self, reply: DialectReply) -> None:
        self._reply = reply
        self._head = head(reply, "chat.completion.chunk")
        options = reply.fields.get("stream_options")
        self._called = [0] * len(reply.calls)
        self._usage = isinstance(options, Mapping) and bool(options.get("include_usage"))

    def begin(self) -> Iterator[bytes]:
        """The role of each choice."""
        prompt = {}
        if self._reply.fields.get("return_token_ids"):
            prompt = {"prompt_token_ids": self._reply.calls[0].prompt_ids.tolist()}
        for index in range(len(self._reply.calls)):
            delta = {"role": "assistant", "content": "", "refusal": None}
            yield self._chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, prompt)

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        """One chunk for each part; tokens and log-probabilities go with the first."""
        fields = self._reply.fields
        tokens: dict[str, Any] = {"logprobs": None}
        if fields.get("logprobs"):
            tokens["logprobs"] = logprobs_of(self._reply, delta.ids, delta.logprobs)
        if fields.get("return_token_ids"):
            tokens["token_ids"] = list(delta.ids)
        shown = [self._part(index, part) for part in delta.parts]
        if not shown and (fields.get("logprobs") or fields.get("return_token_ids")):
            shown = [{}]
        for part in shown:
            yield self._chunk({"index": index, "delta": part, **tokens, "finish_reason": None})
            tokens = {"logprobs": None}

    def _part(self, index: int, part: Part) -> dict[str, Any]:
        if isinstance(part, ToolCall):
            number, self._called[index] = self._called[index], self._called[index] + 1
            return {"tool_calls": [{"index": number, **tool_call(part)}]}
        return {"reasoning_content" if isinstance(part, Reasoning) else "content": part.text}

    def finish(self, index: int) -> Iterator[bytes]:
        """Why the choice ended."""
        reason = finish_reason(self._reply, index)
        ending = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
        yield self._chunk(ending | _flag(self._reply.calls[index]))

    def end(self) -> Iterator[bytes]:
        """Usage where it was asked for, and the end mark."""
        if self._usage:
            yield event(self._head | {"choices": [], "usage": usage(self._reply)})
        yield DONE

    def fault(self, error: CallRefusal) -> Iterator[bytes]:
        """As OpenAI's API tells an error in a stream."""
        yield event(error.body)

    def _chunk(self, choice: dict[str, Any], more: Mapping[str, Any] = {}) -> bytes:
        usage = {"usage": None} if self._usage else {}
        return event({**self._head, "choices": [choice], **usage, **more})


events = ChatEvents
"""See `Dialect.events`."""


def event(content: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(content) + b"\n\n"


def head(reply: DialectReply, kind: str, prefix: str = "chatcmpl") -> dict[str, Any]:
    """What every object about a reply begins with."""
    name = f"{prefix}-{reply.session}-{reply.calls[0].number}"
    return {"id": name, "object": kind, "created": reply.created, "model": reply.model}


def _choice(reply: DialectReply, index: int) -> dict[str, Any]:
    call = reply.calls[index]
    assert call.answer is not None
    choice: dict[str, Any] = {
        "index": index,
        "message": message_of(call.answer),
        "finish_reason": finish_reason(reply, index),
        "logprobs": None,
    } | _flag(call)
    if reply.fields.get("logprobs"):
        choice["logprobs"] = logprobs_of(reply, call.made.ids, call.made.logprobs)
    if reply.fields.get("return_token_ids"):
        choice["token_ids"] = call.made.ids.tolist()
    return choice


def finish_reason(reply: DialectReply, index: int) -> str:
    """Why a choice ended, in OpenAI's words."""
    call = reply.calls[index]
    assert call.result is not None
    assert call.answer is not None
    if call.answer.tool_calls and call.result.finish_reason == "stop":
        return "tool_calls"
    return call.result.finish_reason


def message_of(answer: Message) -> dict[str, Any]:
    """An answer as OpenAI's API shows it."""
    shown: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.tool_calls:
        shown["tool_calls"] = [tool_call(call) for call in answer.tool_calls]
        shown["content"] = answer.text if answer.text.strip() else None
    if answer.reasoning is not None:
        shown["reasoning_content"] = answer.reasoning
    return shown


def tool_call(call: ToolCall) -> dict[str, Any]:
    """A call as OpenAI's API shows it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _flag(call: SessionCall) -> dict[str, Any]:
    return {"areal": {"unparsed_tool_call": True}} if call.unparsed else {}


def logprobs_of(reply: DialectReply, ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
    """Log-probabilities of sampled tokens."""
    content: list[dict[str, Any]] = [
        {"token": reply.text_of(token), "logprob": logprob, "bytes": list(reply.piece_of(token)), "top_logprobs": []}
        for token, logprob in zip(ids, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def usage(reply: DialectReply) -> dict[str, int]:
    """Tokens of prompt and answers."""
    prompt, answer = reply.prompt_tokens, reply.answer_tokens
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
