"""A schedule as data: the job, the fleet, the pace of everything, the faults. Drawn from a seed, replayable."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum


class FaultKind(StrEnum):
    """What happens to the world."""

    KILL_WORKER = "kill worker"
    KILL_SERVER = "kill server"
    KILL_TRAINER = "kill trainer"
    KILL_CONTROLLER = "kill controller"
    KILL_REDIS = "kill redis"  # value: seconds of writes that are lost
    BREAK_STREAM = "break a worker's stream"
    LAG_SERVER = "server lags"  # value: seconds that its next loads take
    REFUSE = "server refuses"  # value: tries that it refuses from now on
    FALL_BACK = "trainer falls back"  # to its last but one checkpoint, silently
    ROLL_BACK = "trainer rolls back"  # the same, deliberately: it publishes the old weights again
    SET_ETA = "set maxStaleness"
    SET_MAX_STEPS = "set maxSteps"


class Point(StrEnum):
    """Moments that faults can be aimed at: uniform chance hardly ever hits the short ones."""

    STORED = "a sample is stored"
    DECIDED = "a tombstone is decided"
    OFFERED = "the trainer has a whole batch"
    ACKNOWLEDGED = "the cursor is acknowledged"
    TRAINED = "a batch is trained"
    PUBLISHED = "weights are published"
    SAVED = "a checkpoint is saved"
    COMMITTED = "a checkpoint is committed"


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at_s` seconds, or `at_s` after the `nth` time that `point` is passed."""

    at_s: float
    kind: FaultKind
    target: int = 0
    value: float = 0.0
    point: Point | None = None
    nth: int = 1

    def __str__(self) -> str:
        when = f"at {self.at_s:.3f} s" if self.point is None else f"{self.at_s:.3f} s after {self.nth}. '{self.point}'"
        return f"{self.kind} {self.target} {self.value:g} {when}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a schedule depends on besides the seed's chances along the way."""

    seed: int
    batch_groups: int
    group_size: int
    max_steps: int
    max_staleness: int
    max_concurrent: int
    capacity: int  # groups that a worker holds
    workers: int
    servers: int
    publish_interval: int
    checkpoint_interval: int
    filter_share: float  # of groups whose samples have equal rewards
    reject_share: float
    infra_share: float  # of samples whose first try fails
    evaluation_interval: int
    budget_groups: int
    sample_s: float  # typical time of a sample
    train_s: float
    load_s: float
    journal_s: float  # longest time of an fsync
    faults: tuple[Fault, ...]

    def story(self) -> list[str]:
        """The scenario in lines for people."""
        fields = [f"{name}={getattr(self, name)}" for name in self.__slots__ if name not in ("faults", "seed")]
        lines = [f"seed {self.seed}: " + " ".join(fields)]
        return lines + [f"  fault: {fault}" for fault in self.faults]


_AIMED_SHARE = 0.4  # of all schedules
_HEALING = (
    FaultKind.KILL_WORKER,
    FaultKind.KILL_SERVER,
    FaultKind.KILL_TRAINER,
    FaultKind.KILL_CONTROLLER,
    FaultKind.KILL_REDIS,
    FaultKind.BREAK_STREAM,
    FaultKind.LAG_SERVER,
    FaultKind.REFUSE,
    FaultKind.FALL_BACK,
    FaultKind.ROLL_BACK,
    FaultKind.SET_ETA,
    FaultKind.SET_MAX_STEPS,
)


def draw(seed: int) -> Scenario:
    """The scenario of a seed: tens of groups, up to six faults, each of which heals."""
    chance = random.Random(seed)
    staleness = chance.choice((0, 0, 1, 1, 2, 3, 4))
    batch = chance.choice((1, 2, 2, 3, 4))
    steps = chance.randint(3, 6)
    scenario = Scenario(
        seed=seed,
        batch_groups=batch,
        group_size=chance.choice((2, 2, 3)),
        max_steps=steps,
        max_staleness=staleness,
        max_concurrent=chance.choice((1, batch, 2 * batch, 8)),
        capacity=chance.choice((1, 2, 4, 8)),
        workers=chance.choice((1, 2)),
        servers=chance.choice((1, 2, 2)),
        publish_interval=chance.randint(1, min(2, staleness + 1)),
        checkpoint_interval=chance.choice((1, 2, 3)),
        filter_share=chance.choice((0.0, 0.2, 0.4, 0.6)),
        reject_share=chance.choice((0.0, 0.0, 0.1)),
        infra_share=chance.choice((0.0, 0.0, 0.1)),
        evaluation_interval=chance.choice((0, 0, 2)),
        budget_groups=chance.choice(((staleness + 2) * batch * 5 // 4 + 2, 1000)),
        sample_s=chance.choice((0.2, 0.5, 1.0)),
        train_s=chance.choice((0.05, 0.3, 1.0)),
        load_s=chance.choice((0.05, 0.3, 1.0)),
        journal_s=chance.choice((0.03, 0.03, 0.5)),
        faults=(),
    )
    horizon_s = 1.0 + steps * (scenario.sample_s + scenario.train_s)
    if chance.random() < _AIMED_SHARE:
        faults = _aimed(chance, scenario) + [
            _fault(chance, scenario, horizon_s) for _ in range(chance.choice((0, 0, 1)))
        ]
    else:
        faults = [_fault(chance, scenario, horizon_s) for _ in range(chance.choice((0, 1, 2, 3, 4, 6)))]
    return replace(scenario, faults=tuple(faults))


def _aimed(chance: random.Random, scenario: Scenario) -> list[Fault]:
    """Several faults at one moment, or in its wake."""
    first, nth = chance.choice((0.0, 0.02, 0.1, 0.3)), chance.randint(1, 6)
    everything = [
        Fault(first, FaultKind.KILL_CONTROLLER),
        Fault(first, FaultKind.KILL_REDIS, 0, 1000.0),
        *(Fault(first, FaultKind.KILL_WORKER, worker) for worker in range(scenario.workers)),
    ]
    one_role = chance.choice((FaultKind.KILL_CONTROLLER, FaultKind.KILL_TRAINER))
    eta = Fault(first, FaultKind.SET_ETA, 0, chance.randint(scenario.publish_interval - 1, 4))
    lag = Fault(0.0, FaultKind.LAG_SERVER, 0, 6.0, Point.PUBLISHED, chance.randint(1, 2))
    point, faults = chance.choice(
        (
            (Point.OFFERED, everything),
            (Point.ACKNOWLEDGED, everything),
            (Point.DECIDED, everything),
            (Point.DECIDED, [Fault(first, FaultKind.KILL_CONTROLLER)]),
            (Point.STORED, [eta, Fault(first, FaultKind.KILL_WORKER, 0), lag]),
            (Point.SAVED, [Fault(first, FaultKind.ROLL_BACK)]),
            (Point.COMMITTED, [Fault(first, FaultKind.ROLL_BACK), lag]),
            (Point.COMMITTED, [Fault(first, FaultKind.FALL_BACK)]),
            (Point.TRAINED, [Fault(0.005, FaultKind.KILL_TRAINER)]),
            (chance.choice(tuple(Point)), [Fault(first, one_role)]),
            (chance.choice(tuple(Point)), [Fault(first, FaultKind.KILL_REDIS, 0, 0.3), Fault(first, one_role)]),
        )
    )
    return [fault if fault.point else replace(fault, point=point, nth=nth) for fault in faults]


def _fault(chance: random.Random, scenario: Scenario, horizon_s: float) -> Fault:
    kind = chance.choice(_HEALING)
    at_s = round(chance.uniform(0.1, horizon_s), 3)
    match kind:
        case FaultKind.KILL_WORKER | FaultKind.BREAK_STREAM:
            return Fault(at_s, kind, chance.randrange(scenario.workers))
        case FaultKind.KILL_SERVER:
            return Fault(at_s, kind, chance.randrange(scenario.servers))
        case FaultKind.LAG_SERVER:
            return Fault(at_s, kind, chance.randrange(scenario.servers), chance.choice((2.0, 6.0)))
        case FaultKind.REFUSE:
            return Fault(at_s, kind, chance.randrange(scenario.servers), chance.choice((1, 3, 6)))
        case FaultKind.KILL_REDIS:
            return Fault(at_s, kind, 0, chance.choice((0.0, 0.3, 1.0, 1000.0)))
        case FaultKind.SET_ETA:
            return Fault(at_s, kind, 0, chance.randint(scenario.publish_interval - 1, 4))
        case FaultKind.SET_MAX_STEPS:
            return Fault(at_s, kind, 0, chance.randint(1, scenario.max_steps + 1))
        case _:
            return Fault(at_s, kind)
