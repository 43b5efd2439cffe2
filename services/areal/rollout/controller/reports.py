"""What others tell the controller: the values its core takes in. No protobuf here; `wire` converts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class FailureKind(StrEnum):
    """Why a sample could not be made."""

    REJECTED = "rejected"  # the workflow returned None
    EXCEPTION = "exception"  # the user's code raised
    HANG = "hang"  # the user's code passed its deadline
    INFRA = "infra"  # not the user's fault


class Figures(Protocol):
    """What is remembered of a stored sample; the ledger's `SampleMeta` is one."""

    @property
    def reward(self) -> float: ...
    @property
    def oldest_version(self) -> int: ...
    @property
    def newest_version(self) -> int: ...
    @property
    def max_staleness(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def truncated(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class SampleReport:
    """Sample (group, index) is in the ledger; the figures are those of the stored attempt."""

    group: int
    index: int
    reward: float
    oldest_version: int
    newest_version: int
    max_staleness: int
    tokens: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Sample (group, index) could not be made."""

    group: int
    index: int
    attempt: int
    kind: FailureKind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HeldReport:
    """A group that a worker works on when it opens a stream."""

    group: int
    attempt: int
    indices: tuple[int, ...]
    max_staleness: int
    has_tokens: bool


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """One evaluation row. `fault` is empty, "infra" (try again) or anything else (the row has no score)."""

    evaluation_id: str
    row: int
    score: float
    oldest_version: int
    newest_version: int
    fault: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One message of a worker. `held` is None except in the first message of a stream."""

    worker_id: str
    incarnation: str
    capacity: int
    progress: int = 0
    held: tuple[HeldReport, ...] | None = None
    done: tuple[SampleReport, ...] = ()
    failures: tuple[FailureReport, ...] = ()
    evaluated: tuple[EvaluationReport, ...] = ()
    released: tuple[int, ...] = ()
    tokens_total: int = 0


@dataclass(frozen=True, slots=True)
class RefusalReport:
    """The newest version that a server would not take, how often it tried, and why not."""

    policy_id: str
    tries: int
    reason: str


@dataclass(frozen=True, slots=True)
class ServerReport:
    """One beat of a generation agent. `version` is -1 before the first load."""

    server_id: str
    incarnation: str
    address: str
    policy_id: str
    version: int
    ready: bool
    live: bool = True
    draining: bool = False
    running: int = 0
    waiting: int = 0
    tokens_total: int = 0
    progress: int = 0
    refused: RefusalReport | None = None
    engine: str = ""
    interruptions_total: int = 0


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """One beat of the trainer. `step` is the version it holds."""

    fence: int
    step: int
    next_group: int
    committed_group: int
    finished: bool = False
    progress: int = 0


@dataclass(frozen=True, slots=True)
class Weights:
    """A published policy version: where it lies and the digest that readers trust."""

    policy_id: str
    version: int
    fence: int
    path: str
    manifest_digest: str
    rollback: bool = False


class LedgerView(Protocol):
    """What a scan of the ledger shows; the ledger's `LedgerSnapshot` is one."""

    @property
    def low(self) -> int: ...
    @property
    def closed(self) -> Mapping[int, str]: ...
    @property
    def samples(self) -> Mapping[int, Mapping[int, Figures]]: ...
