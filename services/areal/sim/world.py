"""What all simulated roles share: the ledger's store, the volume, and the truth that the checks compare with.

Owns what outlives a process (the store with its lost tails, the journal, checkpoints, fences) and the records that no
role sees: which versions really made a token, under which η, what was really trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from areal.errors import InfraError
from areal.ledger.consumer import TrainerState
from areal.ledger.journal import JournalState
from areal.ledger.state import LedgerModel
from areal.rollout.controller.reports import Weights
from areal.sim.scenario import Point, Scenario
from areal.sim.scheduler import Scheduler

_SNAPSHOT_S = 0.25  # how finely a lost tail can be cut


class Store:
    """The ledger as Redis keeps it: away for a while, back with an older state and another run id."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.model = LedgerModel()
        self.up = True
        self.run_id = 0
        self._scheduler = scheduler
        self._snapshots: list[tuple[float, LedgerModel]] = [(0.0, self.model.fork())]

    def keep_snapshots(self) -> None:
        """From now on remember older states."""
        if self.up:
            self._snapshots.append((self._scheduler.now, self.model.fork()))
        self._scheduler.after(_SNAPSHOT_S, self.keep_snapshots)

    def ledger(self) -> LedgerModel:
        """The model behind the connection. Raises InfraError while Redis is away."""
        if not self.up:
            raise InfraError("redis is away")
        return self.model

    def kill(self, lost_s: float) -> None:
        """Redis dies and will have lost the writes of the last `lost_s` seconds."""
        self.up = False
        if lost_s > 0:
            limit = self._scheduler.now - lost_s
            older = [model for at_s, model in self._snapshots if at_s <= limit]
            self.model = older[-1].fork() if older else LedgerModel()

    def restart(self) -> None:
        """Redis is back."""
        self.up = True
        self.run_id += 1
        self._snapshots = [(self._scheduler.now, self.model.fork())]


@dataclass(frozen=True, slots=True)
class TrueSample:
    """What a payload really holds: the version of each of its tokens, when the first was made, under which η."""

    versions: tuple[int, ...]
    first_token_s: float
    eta: int


@dataclass(slots=True)
class Kept:
    """What the controller keeps beside its journal."""

    served: Weights | None = None
    max_steps: int | None = None
    max_staleness: int | None = None


@dataclass(slots=True)
class Truth:
    """Evidence of a run. `trained` are (step, trainer fence, groups, their payloads)."""

    trained: list[tuple[int, int, tuple[int, ...], tuple[tuple[bytes, ...], ...]]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)  # (fence, from_step)
    samples: list[TrueSample] = field(default_factory=list)  # a payload is an index into these
    newest_loaded: int = -1  # newest version that any server ever held
    problems: list[str] = field(default_factory=list)
    finished: bool = False

    def payload(self, sample: TrueSample) -> bytes:
        """Remember a sample; its payload is its number."""
        self.samples.append(sample)
        return b"%d" % (len(self.samples) - 1)


class World:
    """One schedule's world."""

    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler(scenario.seed * 2 + 1)
        self.store = Store(self.scheduler)
        self.journal = JournalState()
        self.kept = Kept()
        self.checkpoints: list[TrainerState] = [TrainerState()]
        self.evaluated: list[str] = []
        self.truth = Truth()
        self.trace: list[str] | None = [] if trace else None
        self.on_point: Callable[[Point], None] = lambda point: None  # a moment that faults can be aimed at
        self._fences = {"trainer": 0, "controller": 0}

    def fence(self, role: str) -> int:
        """The next fence of a role."""
        self._fences[role] += 1
        return self._fences[role]

    def log(self, words: Callable[[], str]) -> None:
        """A line of the event trace; `words` is only asked when somebody reads it."""
        if self.trace is not None:
            self.trace.append(f"{self.scheduler.now:8.3f} s  {words()}")
