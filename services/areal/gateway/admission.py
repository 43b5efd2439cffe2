"""Request fields: which are read, ignored or refused, as one table for each dialect; that of chat is here.

What carries content is refused where it can't be read. What would change the distribution of tokens is done where the
engine can, else refused or ignored as the job says. All else is ignored and named in the answer's header. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from areal.gateway.faults import CallRefusal

IGNORED_HEADER = "x-areal-ignored"
_MOST_HEADER = 1000  # bytes
_LONGEST_NAME = 64


class Treatment(StrEnum):
    """What becomes of a field."""

    READ = "read"
    OVERRIDDEN = "overridden"  # the job's value counts; the answer's header says that another was asked for
    IGNORED = "ignored"
    SHAPING = "refused or ignored"  # by `rollout.gateway.unsupported`; unless its value is one of `harmless`
    REFUSED = "refused"  # it carries content; unless its value is one of `harmless`


@dataclass(frozen=True)
class Field:
    """One field of a request."""

    treatment: Treatment
    why: str
    harmless: tuple[Any, ...] = (None,)


@dataclass(frozen=True)
class AdmissionRules:
    """How requests are admitted. In training the job samples, so nothing may change the distribution of tokens."""

    sampling: Mapping[str, float] = field(default_factory=dict)  # the job's, which a request can't change
    ignores: bool = False  # fields that change the distribution are ignored instead of refused
    honours: frozenset[str] = frozenset()  # of these, the fields that are done as asked
    prompt_logprobs: bool = False  # log-probabilities of a prompt's tokens can be told
    images: bool = False  # the model reads images
    template_names: frozenset[str] = frozenset()  # arguments of the chat template that a request may give
    refusal: str = (
        "it changes the distribution of tokens, which the loss takes to be the policy's "
        "(rollout.gateway.unsupported: ignore has such fields ignored)"
    )


SAMPLED = Field(Treatment.OVERRIDDEN, "the job owns sampling: rollout.sampling")
IGNORED = Field(Treatment.IGNORED, "of no consequence")
_SHAPING = "it changes the distribution of tokens"


def shaping(*harmless: Any) -> Field:
    """A field that changes the distribution of tokens, but for these values."""
    return Field(Treatment.SHAPING, _SHAPING, (None, *harmless))


def read_fields(*names: str) -> dict[str, Field]:
    """Fields that are read."""
    return {name: Field(Treatment.READ, "read") for name in names}


ENGINE_FIELDS: Mapping[str, Field] = {
    "min_p": shaping(0, 0.0),
    "typical_p": shaping(1, 1.0),
    "logit_bias": shaping({}),
    "frequency_penalty": shaping(0, 0.0),
    "presence_penalty": shaping(0, 0.0),
    "repetition_penalty": shaping(1, 1.0),
    "length_penalty": shaping(1, 1.0),
    "no_repeat_ngram_size": shaping(0),
    "min_tokens": shaping(0),
    "ignore_eos": shaping(False),
    "bad_words": shaping([]),
    "allowed_token_ids": shaping(),
    "guided_json": shaping(),
    "guided_regex": shaping(),
    "guided_choice": shaping(),
    "guided_grammar": shaping(),
    "structured_outputs": shaping(),
    "json_schema": shaping(),
    "regex": shaping(),
    "ebnf": shaping(),
    "structural_tag": shaping(),
    "best_of": shaping(1),
    "use_beam_search": shaping(False),
    "beam_width": shaping(1),
}
"""Extensions of engines, in chat and completions."""
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
    "n": Field(Treatment.READ, "so many answers, each sampled for itself"),
    "stream": Field(Treatment.READ, "tokens come as they are sampled"),
    "stream_options": Field(Treatment.READ, "include_usage: usage comes before the end"),
    "tools": Field(Treatment.READ, "functions, written into the prompt by the model's template"),
    "tool_choice": shaping("auto", "none"),
    "parallel_tool_calls": shaping(True),
    "response_format": shaping({"type": "text"}),
    **ENGINE_FIELDS,
    "functions": Field(Treatment.REFUSED, "give tools instead", (None, [])),
    "function_call": Field(Treatment.REFUSED, "give tools instead", (None, "auto", "none")),
    "modalities": Field(Treatment.REFUSED, "text only", (None, ["text"])),
    "audio": Field(Treatment.REFUSED, "text only"),
    "top_logprobs": Field(Treatment.IGNORED, "engines report the sampled token's alone", (None, 0)),
    "chat_template_kwargs": Field(Treatment.READ, "names of model.chatTemplateKwargs; others are ignored"),
}


def admit(
    body: Mapping[str, Any], fields: Mapping[str, Field] = FIELDS, rules: AdmissionRules | None = None
) -> list[str]:
    """The names of the fields that are ignored. Raises Refused with the field's name."""
    rules = rules or AdmissionRules()
    ignored = []
    for name, value in body.items():
        known = fields.get(name, IGNORED)
        if value in known.harmless or known.treatment in (Treatment.READ, Treatment.OVERRIDDEN):
            continue
        if known.treatment is Treatment.SHAPING and name in rules.honours:
            continue
        if known.treatment is Treatment.REFUSED:
            raise CallRefusal(f"{name} is refused: {known.why}", code="unsupported_field", field=name)
        if known.treatment is Treatment.SHAPING and not rules.ignores:
            raise CallRefusal(f"{name} is refused: {rules.refusal}", code="unsupported_field", field=name)
        ignored.append(name)
    return ignored


def spread(body: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A body whose objects of these names are taken apart: `text` becomes `text.format` and what else it has."""
    flat: dict[str, Any] = {}
    for name, value in body.items():
        if name in names and isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": content for inner, content in value.items()})
        else:
            flat[name] = value
    return flat


def overridden(body: Mapping[str, Any], job: Mapping[str, float]) -> tuple[str, ...]:
    """The sampling fields whose value differs from the job's."""
    return tuple(name for name, ours in job.items() if body.get(name) is not None and body[name] != ours)


def header_of(names: Iterable[str]) -> str:
    """Names as a header tells them: at most 1 kB of ASCII; a name's other characters become question marks."""
    told, left = "", 0
    for name in names:
        plain = "".join(
            it if it.isascii() and (it.isalnum() or it in "_-.[]()") else "?" for it in name[:_LONGEST_NAME]
        )
        if len(told) + len(plain) + 2 > _MOST_HEADER:
            left += 1
        else:
            told += f", {plain}" if told else plain
    return f"{told}, +{left}" if left else told
