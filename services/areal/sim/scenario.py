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


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at_s` seconds."""

    at_s: float
    kind: FaultKind
    target: int = 0
    value: float = 0.0


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
    faults: tuple[Fault, ...]

    def story(self) -> list[str]:
        """The scenario in lines for people."""
        fields = [f"{name}={getattr(self, name)}" for name in self.__slots__ if name not in ("faults", "seed")]
        lines = [f"seed {self.seed}: " + " ".join(fields)]
        lines += [f"  fault at {f.at_s:6.2f} s: {f.kind} {f.target} {f.value:g}" for f in self.faults]
        return lines


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
        faults=(),
    )
    count = chance.choice((0, 1, 2, 3, 4, 6))
    horizon_s = 1.0 + steps * (scenario.sample_s + scenario.train_s)
    faults = sorted((_fault(chance, scenario, horizon_s) for _ in range(count)), key=lambda fault: fault.at_s)
    return replace(scenario, faults=tuple(faults))


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
