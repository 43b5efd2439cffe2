"""Inputs of the controller's core: frozen values, one for each kind of event.

Owns the list of inputs, as `decisions` owns that of outputs. A run's inputs with their times replay the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from areal.cards import ServerPhase
from areal.ledger.values import LedgerSnapshot
from areal.rollout.contract.values import WorkerReport

if TYPE_CHECKING:  # decisions hold values of this module
    from areal.rollout.controller.decisions import JournalEntry

# ---- Reports that the controller's core takes in, as values. No protobuf here; `wire` converts


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
    phase: ServerPhase = ServerPhase.AWAKE


@dataclass(frozen=True, slots=True)
class TrainerReport:
    """One beat of the trainer. `step` is the version it holds, `committed` that of its newest checkpoint."""

    fence: int
    step: int
    committed: int
    finished: bool = False
    progress: int = 0
    turn: int = 0  # of shared cards: the newest after which it gave them back
    wants_cards: bool = False


@dataclass(frozen=True, slots=True)
class PublishedWeights:
    """A published policy version: where it lies and the digest that readers trust."""

    policy_id: str
    version: int
    fence: int
    path: str
    manifest_digest: str
    rollback: bool = False
    content_digest: str = ""  # of the tensors alone

    @property
    def evaluation(self) -> str:
        """Name of its evaluation: a trainer that starts again publishes the same weights under a new fence."""
        return f"{self.version}.{self.content_digest[:16]}" if self.content_digest else self.policy_id


# ---- Inputs of the controller's core: frozen values, one for each kind of event


# ---- heartbeats


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """A worker's message."""

    report: WorkerReport


@dataclass(frozen=True, slots=True)
class ServerBeat:
    """A generation agent's message."""

    report: ServerReport


@dataclass(frozen=True, slots=True)
class TrainerBeat:
    """The trainer's message."""

    report: TrainerReport


# ---- calls; each is answered by an `Answer` with its ticket, which whoever queues the call fills in


@dataclass(frozen=True, slots=True)
class AttachTrainer:
    """A trainer starts from a checkpoint. Its ledger `recover` came before."""

    fence: int
    step: int
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class AdvanceTrainer:
    """The trainer took the batch of `step`, and has `groups` complete groups of it in hand."""

    fence: int
    step: int
    groups: int
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class PublishWeights:
    """New weights lie on the volume."""

    fence: int
    weights: PublishedWeights
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class ProposeTombstone:
    """The trainer can't train a group."""

    fence: int
    group: int
    reason: str
    detail: str = ""
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class SetHotFields:
    """Change what may change while the job runs; None leaves a field as it is."""

    max_steps: int | None = None
    max_staleness: int | None = None
    max_concurrent: int | None = None
    ahead: int | None = None
    ticket: int = 0


# ---- answers to decisions


@dataclass(frozen=True, slots=True)
class EntryJournalled:
    """This entry is on disk."""

    entry: JournalEntry


@dataclass(frozen=True, slots=True)
class KeptOnDisk:
    """What was last to be kept is on disk."""


@dataclass(frozen=True, slots=True)
class GroupClosed:
    """The ledger answered a close: the outcome that holds, or the samples that a complete one lacks."""

    epoch: int
    group: int
    outcome: str
    missing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerScanned:
    """The ledger was read; the ticket is that of the scan."""

    ticket: int
    epoch: int
    view: LedgerSnapshot


@dataclass(frozen=True, slots=True)
class LedgerRestarted:
    """The ledger's run id changed and it is claimed again: it may have lost a tail, or everything."""


Call: TypeAlias = AttachTrainer | AdvanceTrainer | PublishWeights | ProposeTombstone | SetHotFields
Input: TypeAlias = (
    WorkerBeat | ServerBeat | TrainerBeat | Call | EntryJournalled | KeptOnDisk | GroupClosed | LedgerScanned
    | LedgerRestarted
)  # fmt: skip
