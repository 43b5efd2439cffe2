"""Request fields: which are read, ignored or refused, by the table of all dialects in fields.yaml.

What carries content is refused where it can't be read. What would change the distribution of tokens is done where the
engine can, else refused or ignored as the job says. All else is ignored and named in the answer's header. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from areal.gateway.faults import CallRefusal
from areal.yaml_file.table import read_table

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


IGNORED = Field(Treatment.IGNORED, "of no consequence")


@cache
def fields_of(dialect: str) -> Mapping[str, Field]:
    """The fields of a dialect's requests by name, as fields.yaml has them."""
    found = {}
    for treatment, rows in read_table("areal.gateway", "fields.yaml")[dialect].items():
        usual = "it changes the distribution of tokens" if treatment == "shaping" else ""
        for name, row in rows.items():
            told: Any = row if isinstance(row, dict) else {"why" if isinstance(row, str) else "harmless": row or ()}
            harmless = (None, *told.get("harmless", ()))
            found[name] = Field(Treatment[treatment.upper()], told.get("why", usual), harmless)
    return found


def admit(body: Mapping[str, Any], dialect: str, rules: AdmissionRules | None = None) -> list[str]:
    """The names of the fields that are ignored. Raises Refused with the field's name."""
    rules = rules or AdmissionRules()
    ignored = []
    for name, value in body.items():
        known = fields_of(dialect).get(name, IGNORED)
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
