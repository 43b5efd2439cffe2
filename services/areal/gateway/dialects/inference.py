"""Dialect of ids in and ids out: `POST /inference/v1/generate`, as vLLM has it. Pure mapping; never streamed."""

from collections.abc import Mapping
from typing import Any

from areal.gateway.admission import AdmissionRules, admit, overridden
from areal.gateway.dialects.chat import (
    ChatEvents,
    digest,
    error,
    events,
    finish_reason,
    positive,
    stops,
    usage,
    whole_number,
)
from areal.gateway.dialects.dialect import DialectReply, DialectRequest, read_object
from areal.gateway.faults import CallRefusal
from areal.gateway.session import SessionRequest
from areal.values.generation import as_ids

__all__ = ["ChatEvents", "error", "events", "parse", "read_ids", "whole"]

_LARGEST = 2**31 - 1


def parse(body: bytes, rules: AdmissionRules) -> DialectRequest:
    """See `Dialect.parse`."""
    fields = read_object(body)
    ignored = admit(fields, "inference", rules)
    wanted = fields.get("sampling_params") or {}
    if not isinstance(wanted, Mapping):
        raise CallRefusal("sampling_params is no object", field="sampling_params")
    ignored += admit({name: value for name, value in wanted.items() if name not in _OF_IDS}, "chat", rules)
    ends = wanted.get("stop_token_ids") or []
    question = SessionRequest(
        messages=(),
        ids=read_ids(fields.get("token_ids"), "token_ids"),
        digest=digest(fields),
        choices=positive(wanted.get("n"), "n") or 1,
        max_tokens=positive(wanted.get("max_tokens"), "max_tokens"),
        stop=stops(wanted.get("stop"), "stop"),
        stop_token_ids=tuple(read_ids(ends, "stop_token_ids")) if ends else (),
        seed=whole_number(wanted.get("seed"), "seed"),
        overridden=overridden(wanted, rules.sampling),
    )
    return DialectRequest(question, fields, ignored=ignored)


_OF_IDS = ("stop_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "detokenize", "logprobs")


def read_ids(given: Any, field: str) -> tuple[int, ...]:
    """Token ids of a request. Raises Refused."""
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(token, int) and 0 <= token <= _LARGEST for token in given)
    ):
        raise CallRefusal(f"{field} is no list of token ids", field=field)
    return tuple(as_ids(given).tolist())


def whole(reply: DialectReply) -> dict[str, Any]:
    """See `Dialect.whole`. Tokens are named by their ids."""
    choices = []
    for index, call in enumerate(reply.calls):
        content: list[dict[str, Any]] = [
            {"token": f"token_id:{token}", "logprob": logprob, "bytes": None, "top_logprobs": []}
            for token, logprob in zip(call.made.ids, call.made.logprobs, strict=True)
        ]
        choices.append(
            {
                "index": index,
                "token_ids": call.made.ids.tolist(),
                "logprobs": {"content": content},
                "finish_reason": finish_reason(reply, index),
            }
        )
    return {
        "request_id": f"gen-{reply.session}-{reply.calls[0].number}",
        "prompt_token_ids": reply.calls[0].prompt_ids.tolist(),
        "choices": choices,
        "usage": usage(reply),
    }
