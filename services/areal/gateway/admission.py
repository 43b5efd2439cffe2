"""Request fields: which are read, ignored or refused, as one table for each dialect; that of chat is here.

Whatever would change the distribution that the loss assumes is refused by its name. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from areal.gateway.faults import CallRefusal


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


SAMPLED = Field(Treatment.OVERRIDDEN, "the job owns sampling: rollout.sampling")
IGNORED = Field(Treatment.IGNORED, "of no consequence")
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
    "temperature": SAMPLED,
    "top_p": SAMPLED,
    "top_k": SAMPLED,
    "min_p": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, 0, 0.0)),
    "n": Field(Treatment.READ, "so many answers, each sampled for itself"),
    "stream": Field(Treatment.READ, "tokens come as they are sampled"),
    "stream_options": Field(Treatment.READ, "include_usage: usage comes before the end"),
    "top_logprobs": Field(Treatment.REFUSED, "engines report the sampled token's alone", (None, 0)),
    "tools": Field(Treatment.READ, "functions, written into the prompt by the model's template"),
    "tool_choice": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, "auto", "none")),
    "functions": Field(Treatment.REFUSED, "give tools instead", (None, [])),
    "function_call": Field(Treatment.REFUSED, "give tools instead", (None, "auto", "none")),
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
    "parallel_tool_calls": Field(Treatment.REFUSED, _SHAPES_TOKENS, (None, True)),
    "user": IGNORED,
    "store": IGNORED,
    "metadata": IGNORED,
    "service_tier": IGNORED,
    "prompt_cache_key": IGNORED,
    "safety_identifier": IGNORED,
}


def read_fields(*names: str) -> dict[str, Field]:
    """Fields that are read."""
    return {name: Field(Treatment.READ, "read") for name in names}


def admit(body: Mapping[str, Any], fields: Mapping[str, Field] = FIELDS) -> None:
    """Refuse a request that can't be trained. Raises Refused with the field's name."""
    for name, value in body.items():
        field = fields.get(name)
        if field is None:
            raise CallRefusal(
                f"{name} is not known here, so it can't be honoured", code="unsupported_field", field=name
            )
        if field.treatment is Treatment.REFUSED and value not in field.harmless:
            raise CallRefusal(f"{name} is refused: {field.why}", code="unsupported_field", field=name)


def overridden(body: Mapping[str, Any], job: Mapping[str, float]) -> tuple[str, ...]:
    """The sampling fields whose value differs from the job's."""
    return tuple(name for name, ours in job.items() if body.get(name) is not None and body[name] != ours)
