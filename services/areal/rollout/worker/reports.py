"""What a worker hears from the controller and tells it, as values; `wire` converts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from areal.ledger.values import SampleMeta


class FailureKind(StrEnum):
    """Why an episode gave no sample."""

    NONE = ""
    REJECTED = "rejected"  # the workflow returned None
    EXCEPTION = "exception"  # the user's code raised
    HANG = "hang"  # the user's code passed its deadline
    INFRA = "infra"  # not the user's fault


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease: a group and the samples it misses. A second one adds samples to a held group."""

    group: int
    attempt: int
    missing: tuple[int, ...]
    group_size: int
    floor: int
    max_staleness: int
    row_json: bytes
    deadline_s: float  # what is left of the group's time


@dataclass(frozen=True, slots=True)
class EvaluationGrant:
    """One row of an evaluation."""

    evaluation_id: str
    row: int
    floor: int
    row_json: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """A sample is in the ledger with these figures, maybe an earlier attempt's."""

    group: int
    index: int
    meta: SampleMeta


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode ended without a sample."""

    group: int
    index: int
    attempt: int
    kind: FailureKind
    message: str
    fix: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The end of an evaluation row; a score when `kind` is NONE."""

    evaluation_id: str
    row: int
    score: float = 0.0
    oldest_version: int = -1
    newest_version: int = -1
    kind: FailureKind = FailureKind.NONE
    message: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A group in work, as the first message of a stream tells it."""

    group: int
    attempt: int
    indices: tuple[int, ...]
    max_staleness: int
    has_tokens: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The content of one message to the controller."""

    done: list[Done] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
