"""Decisions of the controller's core: values that the shell carries out in order.

A decision that needs an answer names the input that brings it. Nothing here does anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from areal.errors import ArealError
from areal.rollout.controller.inputs import PublishedWeights

COMPLETE = "complete"  # the outcome of a group that will be trained; every other outcome is a tombstone's reason


@dataclass(frozen=True, slots=True)
class Admit:
    """Group `group` exists from now on."""

    group: int


@dataclass(frozen=True, slots=True)
class GrantLease:
    """`worker` makes samples `missing` of `group`. A second lease of a held group adds samples to it."""

    worker: str
    group: int
    attempt: int
    missing: tuple[int, ...]
    floor: int
    max_staleness: int
    deadline_s: float  # what is left of the group's time


@dataclass(frozen=True, slots=True)
class Revoke:
    """`worker` stops work on `group`."""

    worker: str
    group: int


@dataclass(frozen=True, slots=True)
class JournalTombstone:
    """Write and fsync before any credit is given; answered by `EntryJournalled`."""

    group: int
    reason: str
    detail: str
    passes: int = 0
    tries: int = 0


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Write and fsync which groups a step trains; answered by `EntryJournalled`.

    `measured` are (group, passes, tries) of them, where the job has pools.
    """

    step: int
    groups: tuple[int, ...]
    measured: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class JournalTrainer:
    """Write and fsync where a trainer started; answered by `EntryJournalled`."""

    ticket: int
    fence: int
    step: int


@dataclass(frozen=True, slots=True)
class JournalPools:
    """Write and fsync that rows are judged anew from `from_group` on; answered by `EntryJournalled`."""

    committed: int
    from_group: int


@dataclass(frozen=True, slots=True)
class JournalRounds:
    """Write and fsync where the rows of a window of groups are; answered by `EntryJournalled`."""

    first: int
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseGroup:
    """Close a group in the ledger; answered by `GroupClosed`.

    `indices` are the samples of a complete group. `short` says that fewer than usual are enough, its deadline being
    over: the journal learns of it first.
    """

    epoch: int
    group: int
    outcome: str
    indices: tuple[int, ...] = ()
    short: bool = False


@dataclass(frozen=True, slots=True)
class ReopenGroup:
    """Take a group back to admitted, without samples."""

    group: int


@dataclass(frozen=True, slots=True)
class ScanLedger:
    """Read the whole ledger; answered by `LedgerScanned` with the same ticket."""

    ticket: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AssignBatch:
    """Tell the ledger which groups a step trains; the journal has it."""

    step: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdvanceLedger:
    """Every group below `low` has ended."""

    low: int


@dataclass(frozen=True, slots=True)
class KeepServed:
    """Write the weights that will be served to disk; answered by `KeptOnDisk`."""

    weights: PublishedWeights


@dataclass(frozen=True, slots=True)
class KeepHot:
    """Write the hot fields that will hold to disk; answered by `KeptOnDisk`."""

    max_steps: int
    max_staleness: int
    max_concurrent: int
    ahead: int | None = None


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """Answer the call that holds this ticket: with `error`, or well."""

    ticket: int
    error: ArealError | None = None
    accepted: bool = True


@dataclass(frozen=True, slots=True)
class WantWeights:
    """Every generation server should hold these."""

    weights: PublishedWeights


@dataclass(frozen=True, slots=True)
class LeaseEvaluation:
    """`worker` makes one answer to one row."""

    worker: str
    evaluation_id: str
    row: int
    floor: int
    sample: int = 0  # 0 is the greedy answer


@dataclass(frozen=True, slots=True)
class RecordEvaluation:
    """An evaluation is whole: write it down."""

    name: str
    policy_id: str
    version: int
    rows: int
    mean: float
    oldest_version: int
    newest_version: int
    failed_rows: int
    failed_samples: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)  # of sampled answers: avg@n, pass@k
    sets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by name: rows, mean, and these


class Notice(Enum):
    """A decision that peers are told something, which is the same for all of a kind."""

    RESEND = auto()  # the ledger lost data: every worker adds its held samples again
    TURN_CHANGED = auto()  # the cards are for the other side: every generation server and the trainer are told
    TRAINER_NEWS = auto()  # a group of the next batch is complete: the trainer is told
    FLEET_CHANGED = auto()  # every worker is told the whole fleet
    STOP_WORKERS = auto()  # the run is over


JournalEntry: TypeAlias = JournalTombstone | JournalBatch | JournalTrainer | JournalPools | JournalRounds
Decision: TypeAlias = (
    Admit | GrantLease | Revoke | JournalEntry | CloseGroup | ReopenGroup | ScanLedger | AssignBatch | AdvanceLedger
    | KeepServed | KeepHot | CallAnswer | WantWeights | LeaseEvaluation | RecordEvaluation | Notice
)  # fmt: skip
