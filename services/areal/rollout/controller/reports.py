"""Reports that the controller's core takes in, as values. No protobuf here; `wire` converts.

What workers tell is in the contract.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from areal.cards import ServerPhase


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
    @property
    def masked(self) -> bool: ...


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


class LedgerView(Protocol):
    """What a scan of the ledger shows; the ledger's `LedgerSnapshot` is one."""

    @property
    def low(self) -> int: ...
    @property
    def committed(self) -> int: ...
    @property
    def trainer_fence(self) -> int: ...
    @property
    def batches(self) -> Mapping[int, tuple[int, ...]]: ...
    @property
    def closed(self) -> Mapping[int, str]: ...
    @property
    def samples(self) -> Mapping[int, Mapping[int, Figures]]: ...
