"""Reports that the controller's core takes in, as values. No protobuf here; `wire` converts.

What workers tell is in the contract.
"""

from dataclasses import dataclass

from areal.cards import ServerPhase


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
