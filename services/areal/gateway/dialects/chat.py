"""OpenAI's chat completions: a request body as a question, an answer as a response body. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import xxhash

from areal.gateway.admission import admit, overridden
from areal.gateway.faults import Refused
from areal.gateway.messages import parse_messages
from areal.gateway.session import Call, Question

_STOPS = 4  # as OpenAI allows


def parse(body: bytes, job_sampling: Mapping[str, float]) -> tuple[Question, dict[str, Any]]:
    """The question of a request, and its fields. Raises Refused."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"the body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Refused("the body is no JSON object")
    admit(fields)
    limit = next(
        (fields[name] for name in ("max_completion_tokens", "max_tokens") if fields.get(name) is not None), None
    )
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise Refused(f"max_tokens is {limit!r}, not a positive number", field="max_tokens")
    seed = fields.get("seed")
    if seed is not None and not isinstance(seed, int):
        raise Refused(f"seed is {seed!r}, not a whole number", field="seed")
    question = Question(
        messages=parse_messages(fields.get("messages")),
        digest=xxhash.xxh3_64_intdigest(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)),
        max_tokens=limit,
        stop=_stops(fields.get("stop")),
        seed=seed,
        overridden=overridden(fields, job_sampling),
    )
    return question, fields


def _stops(given: Any) -> tuple[str, ...]:
    stops = [given] if isinstance(given, str) else given or []
    if not isinstance(stops, list) or len(stops) > _STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise Refused(f"stop is {given!r}; give a text or up to {_STOPS}", field="stop")
    return tuple(stops)


def response(
    session: str, call: Call, fields: Mapping[str, Any], *, text_of: Callable[[int], str], created: int
) -> dict[str, Any]:
    """The body that answers `fields` by a call that is done."""
    result, answer = call.result, call.answer
    assert result is not None
    assert answer is not None
    ids = result.output_ids.tolist()
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "finish_reason": result.finish_reason,
        "logprobs": None,
    }
    if fields.get("logprobs"):
        choice["logprobs"] = {
            "content": [
                {"token": text_of(token), "logprob": float(logprob), "bytes": None, "top_logprobs": []}
                for token, logprob in zip(ids, result.logprobs.tolist(), strict=True)
            ],
            "refusal": None,
        }
    body: dict[str, Any] = {
        "id": f"chatcmpl-{session}-{call.number}",
        "object": "chat.completion",
        "created": created,
        "model": str(fields.get("model") or "policy"),
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(call.prompt_ids),
            "completion_tokens": len(ids),
            "total_tokens": len(call.prompt_ids) + len(ids),
        },
    }
    if fields.get("return_token_ids"):
        body["prompt_token_ids"] = call.prompt_ids.tolist()
        choice["token_ids"] = ids
    return body
