"""The values that workers and the rollout controller exchange. No protobuf here; `wire` converts, both ways."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from areal.ledger.values import SampleMeta

FIGURES = (
    "reward", "oldest_version", "newest_version", "max_staleness", "tokens", "truncated", "masked", "sampled", "moved"
)  # fmt: skip
"""What a stored sample's meta, its `SampleDone` and the message of that have in common."""


def fields_of(item: object, names: Iterable[str]) -> dict[str, Any]:
    """These fields of a value or message, for another one in which they have the same names."""
    return {name: getattr(item, name) for name in names}


class FailureKind(StrEnum):
    """Why an episode gave no sample, or an evaluation row no score."""

    NONE = ""
    REJECTED = "rejected"  # the workflow returned None
    EXCEPTION = "exception"  # the user's code raised
    HANG = "hang"  # the user's code passed its deadline
    INFRA = "infra"  # not the user's fault


# ---- what a worker tells


@dataclass(frozen=True, slots=True)
class SampleDone:
    """Sample (group, index) is in the ledger with these figures, maybe an earlier attempt's."""

    group: int
    index: int
    reward: float
    oldest_version: int
    newest_version: int
    max_staleness: int
    tokens: int = 0
    truncated: bool = False
    attempt: int = 0
    masked: bool = False
    sampled: int = 0
    moved: int = 0

    @classmethod
    def of(cls, group: int, index: int, meta: SampleMeta) -> "SampleDone":
        """The figures of a stored sample."""
        return cls(group=group, index=index, attempt=meta.attempt, **fields_of(meta, FIGURES))


@dataclass(frozen=True, slots=True)
class SampleFailure:
    """Sample (group, index) could not be made."""

    group: int
    index: int
    attempt: int
    kind: FailureKind
    message: str = ""
    fix: str = ""
    traceback: str = ""

    @property
    def detail(self) -> str:
        """All that is known of it."""
        return _joined(self.message, self.fix, self.traceback)


BLIND = 1 << 20
"""The `sample` of an answer to an evaluation row without its images, and without what tools answer."""
NOTHING_WITHHELD = "there was nothing to withhold"
"""Why such an answer has no score: its episode showed no image and called no tool."""


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """The end of one answer to an evaluation row; a score when `kind` is NONE."""

    evaluation_id: str
    row: int
    score: float = 0.0
    oldest_version: int = -1
    newest_version: int = -1
    kind: FailureKind = FailureKind.NONE
    message: str = ""
    traceback: str = ""
    sample: int = 0  # 0 is the greedy answer

    @property
    def detail(self) -> str:
        """All that is known of its failure."""
        return _joined(self.message, self.traceback)


@dataclass(frozen=True, slots=True)
class GroupInHand:
    """A group that a worker works on when it opens a stream."""

    group: int
    attempt: int
    indices: tuple[int, ...]
    max_staleness: int
    has_tokens: bool
    floor: int = 0


@dataclass(frozen=True, slots=True)
class WorkReport:
    """What is new since the last message. `held` is None except in the first message of a stream."""

    done: tuple[SampleDone, ...] = ()
    failures: tuple[SampleFailure, ...] = ()
    evaluated: tuple[EvaluationAnswer, ...] = ()
    released: tuple[int, ...] = ()
    held: tuple[GroupInHand, ...] | None = None


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One message of a worker: who it is, how it stands, what is new."""

    worker_id: str
    incarnation: str
    capacity: int
    news: WorkReport = WorkReport()
    progress: int = 0
    tokens_total: int = 0
    token_fates: Mapping[str, int] = field(default_factory=dict)  # and those in work
    lost: str = ""  # a service that answers none of its calls, in words
    lost_role: str = ""
    lost_s: float = 0.0  # since the first of these


# ---- what the controller orders


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
    """One answer to one row of an evaluation."""

    evaluation_id: str
    row: int
    floor: int
    row_json: bytes
    sample: int = 0  # 0 is the greedy answer


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
