"""Request fields of the chat dialect: which are read, ignored or refused, as one table.

Whatever would change the distribution that the loss assumes is refused by its name. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from areal.gateway.faults import Refused


class Treatment(StrEnum):
    """What becomes of a field."""

    READ = "read"
    OVERRIDDEN = "overridden"  # the job's value counts; the answer's header says that another was asked for
    IGNORED = "ignored"
    REFUSED = "refused"  # unless its value is one of `harmless`


@dataclass(frozen=True)
class Field:
    """One field of a request."""

    treatment: Treatment
    why: str
    harmless: tuple[Any, ...] = (None,)


_SAMPLING = Field(Treatment.OVERRIDDEN, "the job owns sampling: rollout.sampling")
_SHAPES_TOKENS = "it changes the distribution of tokens, which the loss takes to be the policy's"

FIELDS: Mapping[str, Field] = {
    "messages": Field(Treatment.READ, "text only"),
    "model": Field(Treatment.READ, "any name; the policy answers"),
    "max_tokens": Field(Treatment.READ, "at most rollout.sampling.maxNewTokens and the room there is"),
    "max_completion_tokens": Field(Treatment.READ, "the same; it counts before max_tokens"),
    "stop": Field(Treatment.READ, "a text or up to four"),
    "seed": Field(Treatment.READ, "another seed is another question"),
    "logprobs": Field(Treatment.READ, "of the sampled tokens, at the job's temperature"),
    "return_token_ids": Field(Treatment.READ, "adds prompt_token_ids and token_ids"),
    "temperature": _SAMPLING,
    "top_p": _SAMPLING,
    "top_k": _SAMPLING,
    "min_p": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, 0, 0.0)),
    "n": Field(Treatment.REFUSED, "one answer a call", (None, 1)),
    "stream": Field(Treatment.REFUSED, "answers come whole", (None, False)),
    "stream_options": Field(Treatment.IGNORED, "there is no stream"),
    "top_logprobs": Field(Treatment.REFUSED, "engines report the sampled token's alone", (None, 0)),
    "tools": Field(Treatment.REFUSED, "tool calls are not parsed", (None, [])),
    "tool_choice": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, "auto", "none")),
    "functions": Field(Treatment.REFUSED, "tool calls are not parsed", (None, [])),
    "function_call": Field(Treatment.REFUSED, "tool calls are not parsed", (None, "auto", "none")),
    "response_format": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, {"type": "text"})),
    "logit_bias": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, {})),
    "frequency_penalty": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, 0, 0.0)),
    "presence_penalty": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, 0, 0.0)),
    "repetition_penalty": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, 1, 1.0)),
    "guided_json": Field(Treatment.REFUSED, _SHAPES_TOKENS),
    "guided_regex": Field(Treatment.REFUSED, _SHAPES_TOKENS),
    "guided_choice": Field(Treatment.REFUSED, _SHAPES_TOKENS),
    "guided_grammar": Field(Treatment.REFUSED, _SHAPES_TOKENS),
    "modalities": Field(Treatment.REFUSED, "text only", (None, ["text"])),
    "audio": Field(Treatment.REFUSED, "text only"),
    "chat_template_kwargs": Field(Treatment.REFUSED, "the template is pinned by the job", (None, {})),
    "parallel_tool_calls": Field(Treatment.IGNORED, "there are no tools"),
    "user": Field(Treatment.IGNORED, "of no consequence"),
    "store": Field(Treatment.IGNORED, "of no consequence"),
    "metadata": Field(Treatment.IGNORED, "of no consequence"),
    "service_tier": Field(Treatment.IGNORED, "of no consequence"),
    "prompt_cache_key": Field(Treatment.IGNORED, "of no consequence"),
    "safety_identifier": Field(Treatment.IGNORED, "of no consequence"),
}


def admit(body: Mapping[str, Any]) -> None:
    """Refuse a request that can't be trained. Raises Refused with the field's name."""
    for name, value in body.items():
        field = FIELDS.get(name)
        if field is None:
            raise Refused(f"{name} is not known here, so it can't be honoured", code="unsupported_field", field=name)
        if field.treatment is Treatment.REFUSED and value not in field.harmless:
            raise Refused(f"{name} is refused: {field.why}", code="unsupported_field", field=name)


def overridden(body: Mapping[str, Any], job: Mapping[str, float]) -> tuple[str, ...]:
    """The sampling fields whose value differs from the job's."""
    return tuple(name for name, ours in job.items() if body.get(name) is not None and body[name] != ours)
