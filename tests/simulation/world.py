"""Shared world of the simulated roles: the ledger's store, the volume, and the record that the checks read.

Owns what outlives a process (the store with its lost tails, the journal's file, kept values, checkpoints, fences) and
the records that no role sees: which versions really made a token, under which η, what was really trained.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from areal.cards import CardSide
from areal.errors import InfraError
from areal.ledger.consumer import TrainerState
from areal.ledger.journal import JournalState, apply
from areal.ledger.lines import Record, RecordLine
from areal.ledger.state import LedgerModel
from areal.rollout.controller.kept import RestoredState

from simulation.scenario import Point, Scenario
from simulation.scheduler import Incarnation, VirtualScheduler

_SNAPSHOT_S = 0.25  # how finely a lost tail can be cut


class SimLedger:
    """The ledger as Redis keeps it: away for a while, back with an older state and another run id."""

    def __init__(self, scheduler: VirtualScheduler) -> None:
        self.model = LedgerModel()
        self.up = True
        self.run_id = 0
        self.users: dict[str, int] = {}  # newest fence of each role that the ledger heard of, and didn't lose
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
            self.users.clear()
            limit = self._scheduler.now - lost_s
            older = [model for at_s, model in self._snapshots if at_s <= limit]
            self.model = older[-1].fork() if older else LedgerModel()

    def restart(self) -> None:
        """Redis is back."""
        self.up = True
        self.run_id += 1
        self._snapshots = [(self._scheduler.now, self.model.fork())]


class JournalFile:
    """The journal's lines on the volume. Those that were not synced are lost when their machine loses power."""

    def __init__(self) -> None:
        self.on_disk = JournalState()
        self._records: list[Record] = []
        self._synced = 0

    def read(self) -> Sequence[RecordLine]:
        """See `areal.ledger.journal.JournalLines`."""
        return [RecordLine(number, record) for number, record in enumerate(self._records, 1)]

    def append(self, records: Sequence[Record], *, sync: bool) -> None:
        """See `areal.ledger.journal.JournalLines`."""
        self._records += records
        if not sync:
            return
        for record in self._records[self._synced :]:
            apply(self.on_disk, record)
        self._synced = len(self._records)

    def close(self) -> None:
        """See `areal.ledger.journal.JournalLines`."""

    def lose_power(self) -> None:
        """What was not synced is gone."""
        del self._records[self._synced :]


@dataclass(frozen=True, slots=True)
class TrueSample:
    """What a payload really holds: the version of each of its tokens, when the first was made, under which η."""

    versions: tuple[int, ...]
    first_token_s: float
    eta: int


@dataclass(frozen=True, slots=True)
class SavedTrainer:
    """A saved trainer, under its fence."""

    fence: int
    state: TrainerState


@dataclass(frozen=True, slots=True)
class TrueStep:
    """A step as it really happened."""

    step: int
    fence: int  # of its trainer
    groups: tuple[int, ...]
    payloads: tuple[tuple[bytes, ...], ...]
    at_s: float


@dataclass(slots=True)
class Truth:
    """Evidence of a run."""

    trained: list[TrueStep] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)  # (trainer fence, from_step)
    samples: list[TrueSample] = field(default_factory=list)  # a payload is an index into these
    newest_loaded: int = -1  # newest version that any server ever held
    problems: list[str] = field(default_factory=list)
    broken_at_s: float = 0.0  # when a fault struck or healed last
    longest_idle_s: float = 0.0  # between two steps, with nothing broken
    closed: dict[int, set[tuple[bytes, ...]]] = field(default_factory=dict)  # what groups were closed complete with
    kept: RestoredState = field(default_factory=RestoredState)  # what a controller last said to be on disk
    finished: bool = False
    made_tokens: int = 0  # by all servers
    untold_tokens: Counter[tuple[int, int]] = field(default_factory=Counter)  # by server and incarnation
    failed_tokens: int = 0  # of tries that the platform failed

    def payload(self, sample: TrueSample) -> bytes:
        """Remember a sample; its payload is its number."""
        self.samples.append(sample)
        return b"%d" % (len(self.samples) - 1)


class SimWorld:
    """One schedule's world."""

    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self.scenario = scenario
        self.scheduler = VirtualScheduler(scenario.seed * 2 + 1)
        self.store = SimLedger(self.scheduler)
        self.journal = JournalFile()
        self.kept: dict[int, RestoredState] = {}  # by controller fence
        self.checkpoints: list[SavedTrainer] = []
        self.evaluated: list[str] = []
        self.token_counts: dict[int, dict[str, int]] = {}  # by controller fence
        self.truth = Truth()
        self.trace: list[str] | None = [] if trace else None
        self.on_point: Callable[[Point], None] = lambda point: None  # a moment that faults can be aimed at
        self.unreadable = False  # the batch that a trainer takes next
        self.fences = {"trainer": 0, "controller": 0}  # newest
        self.cards: dict[CardSide, set[Incarnation]] = {side: set() for side in CardSide}

    def fence(self, role: str) -> int:
        """The next fence of a role."""
        self.fences[role] += 1
        return self.fences[role]

    def log(self, words: Callable[[], str]) -> None:
        """A line of the event trace; `words` is only asked when somebody reads it."""
        if self.trace is not None:
            self.trace.append(f"{self.scheduler.now:8.3f} s  {words()}")

    def take_cards(self, side: CardSide, process: Incarnation) -> bool:
        """As `CardLock.try_take`: whoever is dead has let go, whoever hangs has not."""
        other = CardSide.SERVING if side is CardSide.TRAINING else CardSide.TRAINING
        if any(holder.alive for holder in self.cards[other]):
            return False
        self.cards[side].add(process)
        return True

    def obeyed(self, what: str, fence: int, newest: int) -> int:
        """Something did as this fence said: a problem when it knew a newer one. Returns the newest."""
        if fence < newest:
            self.truth.problems.append(f"promise 5: {what} obeyed fence {fence} after {newest}")
        return max(fence, newest)

    def used_ledger(self, role: str, fence: int) -> None:
        """The ledger did what a process asked for."""
        users = self.store.users
        users[role] = self.obeyed(f"the ledger's {role} side", fence, users.get(role, 0))

    def broken(self) -> None:
        """A fault strikes, or heals."""
        self.truth.broken_at_s = self.scheduler.now

    def trained(self, trained: TrueStep) -> None:
        """A batch went into the model."""
        truth = self.truth
        since = max(truth.broken_at_s, truth.trained[-1].at_s if truth.trained else 0.0)
        truth.longest_idle_s = max(truth.longest_idle_s, trained.at_s - since)
        truth.trained.append(trained)

    # ---- checkpoints

    def save(self, fence: int, state: TrainerState) -> None:
        """A checkpoint is on the volume."""
        self.checkpoints.append(SavedTrainer(fence, state))

    def newest_checkpoint(self) -> TrainerState:
        """Of the newest lineage that survives: one above the start of a later trainer belongs to an abandoned one."""
        surviving = [
            (saved.fence, saved.state.step, saved.state)
            for saved in self.checkpoints
            if not any(fence > saved.fence and begun < saved.state.step for fence, begun in self.truth.starts)
        ]
        return max(surviving, key=lambda saved: saved[:2])[2] if surviving else TrainerState()

    def lose_newest_checkpoint(self) -> None:
        """The newest checkpoint turns out to be bad."""
        newest = self.newest_checkpoint()
        self.checkpoints = [saved for saved in self.checkpoints if saved.state != newest]
