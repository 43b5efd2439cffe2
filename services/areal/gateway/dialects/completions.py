"""OpenAI's completions dialect: `POST /v1/completions`, of a text or of ids. Pure mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from areal.gateway.admission import FIELDS as CHAT_FIELDS
from areal.gateway.admission import Field, Treatment, admit, overridden, read_fields
from areal.gateway.dialects.chat import DONE, digest, finish_reason, flag, positive, stops, usage, whole_number
from areal.gateway.dialects.dialect import Delta, DialectReply, DialectRequest, read_object
from areal.gateway.dialects.inference import read_ids
from areal.gateway.faults import CallRefusal
from areal.gateway.reading import Text
from areal.gateway.session import SessionRequest

_OF_CHAT = ("messages", "tools", "tool_choice", "max_completion_tokens", "logprobs", "parallel_tool_calls")
FIELDS: Mapping[str, Field] = {
    **{name: field for name, field in CHAT_FIELDS.items() if name not in _OF_CHAT},
    **read_fields("prompt", "logprobs"),
    "echo": Field(Treatment.REFUSED, "the prompt isn't told again", (None, False)),
    "best_of": Field(Treatment.REFUSED, "it chooses among answers", (None, 1)),
    "suffix": Field(Treatment.REFUSED, "text is continued, not filled in"),
}


def parse(body: bytes, sampling: Mapping[str, float]) -> DialectRequest:
    """See `Dialect.parse`."""
    fields = read_object(body)
    admit(fields, FIELDS)
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if not (isinstance(prompt, str) and prompt) and not isinstance(prompt, list):
        raise CallRefusal("prompt has to be one text or one list of token ids", field="prompt")
    question = SessionRequest(
        messages=(),
        text=prompt if isinstance(prompt, str) else "",
        ids=() if isinstance(prompt, str) else read_ids(prompt, "prompt"),
        digest=digest(fields),
        choices=positive(fields.get("n"), "n") or 1,
        max_tokens=positive(fields.get("max_tokens"), "max_tokens"),
        stop=stops(fields.get("stop"), "stop"),
        seed=whole_number(fields.get("seed"), "seed"),
        overridden=overridden(fields, sampling),
    )
    return DialectRequest(question, fields, flag(fields, "stream"))


def error(refused: CallRefusal) -> dict[str, Any]:
    """See `Dialect.error`."""
    return refused.body


def whole(reply: DialectReply) -> dict[str, Any]:
    """See `Dialect.whole`."""
    choices = []
    for index, call in enumerate(reply.calls):
        assert call.answer is not None
        delta = Delta((Text(call.answer.text),), call.made.ids, call.made.logprobs)
        choices.append(_choice(reply, index, delta) | {"finish_reason": finish_reason(reply, index)})
    body = _head(reply) | {"choices": choices, "usage": usage(reply)}
    if reply.fields.get("return_token_ids"):
        body["prompt_token_ids"] = reply.calls[0].prompt_ids.tolist()
    return body


def events(reply: DialectReply) -> CompletionEvents:
    """See `Dialect.events`."""
    return CompletionEvents(reply)


class CompletionEvents:
    """Chunks of a completion. See `Events`."""

    def __init__(self, reply: DialectReply) -> None:
        self._reply = reply

    def begin(self) -> Iterator[bytes]:
        """Nothing comes before the text."""
        yield from ()

    def delta(self, index: int, delta: Delta) -> Iterator[bytes]:
        """One chunk."""
        yield self._chunk(_choice(self._reply, index, delta))

    def finish(self, index: int) -> Iterator[bytes]:
        """Why the choice ended."""
        reason = finish_reason(self._reply, index)
        yield self._chunk({"index": index, "text": "", "logprobs": None, "finish_reason": reason})

    def end(self) -> Iterator[bytes]:
        """Usage where it was asked for, and the end mark."""
        options = self._reply.fields.get("stream_options")
        if isinstance(options, Mapping) and options.get("include_usage"):
            yield _event(_head(self._reply) | {"choices": [], "usage": usage(self._reply)})
        yield DONE

    def fault(self, error: CallRefusal) -> Iterator[bytes]:
        """As OpenAI's API tells an error in a stream."""
        yield _event(error.body)

    def _chunk(self, choice: Mapping[str, Any]) -> bytes:
        return _event(_head(self._reply) | {"choices": [choice]})


def _choice(reply: DialectReply, index: int, delta: Delta) -> dict[str, Any]:
    text = "".join(part.text for part in delta.parts if isinstance(part, Text))
    choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
    if reply.fields.get("logprobs") is not None:
        tokens = [reply.text_of(token) for token in delta.ids]
        told = {"tokens": tokens, "token_logprobs": list(delta.logprobs), "top_logprobs": None, "text_offset": []}
        choice["logprobs"] = told
    if reply.fields.get("return_token_ids"):
        choice["token_ids"] = list(delta.ids)
    return choice


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def _head(reply: DialectReply) -> dict[str, Any]:
    name = f"cmpl-{reply.session}-{reply.calls[0].number}"
    return {"id": name, "object": "text_completion", "created": reply.created, "model": reply.model}
