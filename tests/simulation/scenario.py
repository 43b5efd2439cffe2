"""A schedule as data: the job, the fleet, the pace of everything, the faults. Drawn from a seed, replayable."""

import random
from dataclasses import dataclass, replace
from enum import StrEnum

from areal.rollout.controller.settings import MOST_SHARED_STALENESS


class FaultKind(StrEnum):
    """What happens to the world."""

    KILL_WORKER = "kill worker"
    KILL_SERVER = "kill server"
    KILL_TRAINER = "kill trainer"
    KILL_CONTROLLER = "kill controller"  # value: 1 with its machine's power, so that what is not synced is lost
    KILL_REDIS = "kill redis"  # value: seconds of writes that are lost
    DRAIN_WORKER = "drain worker"  # it gives back what it holds, then ends
    BREAK_STREAM = "break a worker's stream"
    PAUSE_WORKER = "pause worker"  # value: seconds; another process takes its name, then it goes on for a while
    PAUSE_SERVER = "pause server"  # the same
    PAUSE_TRAINER = "pause trainer"  # the same
    PAUSE_CONTROLLER = "pause controller"  # the same
    LATE_REPORTS = "a worker's reports are late"  # value: seconds
    LATE_ORDERS = "a worker's orders are late"  # value: seconds; its view of the fleet lags as well
    LATE_BEATS = "a server's beats are late"  # value: seconds; everybody's view of it lags
    POISON = "the trainer can't read its next batch"
    LAG_SERVER = "server lags"  # value: seconds that its next loads take
    REFUSE = "server refuses"  # value: tries that it refuses from now on
    FALL_BACK = "trainer falls back"  # to its last but one checkpoint, silently
    ROLL_BACK = "trainer rolls back"  # the same, deliberately: it publishes the old weights again
    SET_ETA = "set maxStaleness"
    SET_MAX_STEPS = "set maxSteps"
    SET_CONCURRENT = "set maxConcurrentRollouts"


class Point(StrEnum):
    """Moments that faults can be aimed at: uniform chance hardly ever hits the short ones."""

    STORED = "a sample is stored"
    DECIDED = "a tombstone is decided"
    RECOVERED = "the trainer told the ledger where it starts"
    TOOK = "the trainer took some groups"
    OFFERED = "the trainer has a whole batch"
    ACKNOWLEDGED = "the cursor is acknowledged"
    TRAINED = "a batch is trained"
    PUBLISHED = "weights are published"
    SAVING = "a checkpoint is being saved"
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
    ahead: int
    admission_order: bool
    max_concurrent: int
    capacity: int  # groups that a worker holds
    workers: int
    servers: int
    publish_interval: int
    checkpoint_interval: int
    filter_share: float  # of groups whose samples have equal rewards
    reject_share: float
    infra_share: float  # of samples whose first try fails
    slow_share: float  # of groups that take many times as long as the others
    endless_share: float  # of samples that don't end before their group's deadline
    deadline_s: float
    repeat_share: float  # of ledger calls that are done again because the answer was late
    evaluation_interval: int
    budget_groups: int
    sample_s: float  # typical time of a sample
    train_s: float
    load_s: float
    journal_s: float  # longest time of an fsync
    faults: tuple[Fault, ...]
    decode_s: float = 0.005  # between a batch's markers and its payloads
    shared: bool = False  # servers and trainer have the same cards, by turns

    @property
    def step_s(self) -> float:
        """A slow step of a run that waits for each of its parts in turn, with as many tries as filters may ask for."""
        rounds = -(-self.batch_groups // min(self.max_concurrent, self.capacity * self.workers))
        tries = 1.0 / (1.0 - self.filter_share - self.reject_share)
        again_s = 2.0 if self.infra_share else 0.0
        endless_s = 1.2 * self.deadline_s if self.endless_share else 0.0
        made_s = (SLOW_TOKENS + 0.5 if self.slow_share else 2.5) * self.sample_s
        generated_s = made_s + 4 * self.journal_s + 0.5 + again_s + endless_s + self.decode_s
        switch_s = 2.0 + 1.5 * self.load_s if self.shared else 0.0
        return rounds * tries * generated_s + 1.5 * self.train_s + 1.5 * self.load_s + self.journal_s + 0.5 + switch_s

    @property
    def patience_s(self) -> float:
        """How long nothing may be trained while nothing is broken: chance may filter many groups in a row, and a server
        that refused weights waits up to 8 s before its next try."""
        return 15.0 + 5.0 * self.step_s

    def longest_s(self, steps: int) -> float:
        """How long `steps` may take without faults."""
        return 5.0 + 1.5 * (steps * self.step_s + 2.0 * self.load_s)

    def story(self) -> list[str]:
        """The scenario in lines for people."""
        fields = [f"{name}={getattr(self, name)}" for name in self.__slots__ if name not in ("faults", "seed")]
        lines = [f"seed {self.seed}: " + " ".join(fields)]
        return lines + [f"  fault: {fault}" for fault in self.faults]


SLOW_TOKENS = 16  # of a sample of a slow group
_AIMED_SHARE = 0.6  # of all schedules
_HEALING = (
    FaultKind.KILL_WORKER, FaultKind.KILL_SERVER, FaultKind.KILL_TRAINER, FaultKind.KILL_CONTROLLER,
    FaultKind.KILL_REDIS, FaultKind.BREAK_STREAM, FaultKind.LAG_SERVER, FaultKind.REFUSE, FaultKind.FALL_BACK,
    FaultKind.ROLL_BACK, FaultKind.SET_ETA, FaultKind.SET_MAX_STEPS, FaultKind.SET_CONCURRENT,
    FaultKind.DRAIN_WORKER, FaultKind.PAUSE_WORKER, FaultKind.PAUSE_SERVER, FaultKind.PAUSE_TRAINER,
    FaultKind.PAUSE_CONTROLLER, FaultKind.LATE_REPORTS, FaultKind.LATE_ORDERS, FaultKind.LATE_BEATS,
)  # fmt: skip


def draw(seed: int, aim: "Aim | None" = None) -> Scenario:
    """The scenario of a seed: tens of groups, up to seven faults, each of which heals. `aim` chooses what they hit."""
    chance = random.Random(seed)
    staleness = chance.choice((0, 0, 1, 1, 2, 3, 4))
    ahead = chance.randint(-(-staleness // 2), staleness)
    batch = chance.choice((1, 2, 2, 3, 4))
    steps = chance.randint(3, 6)
    scenario = Scenario(
        seed=seed,
        batch_groups=batch,
        group_size=chance.choice((2, 2, 3)),
        max_steps=steps,
        max_staleness=staleness,
        ahead=ahead,
        admission_order=chance.random() < 0.2,
        max_concurrent=chance.choice((1, batch, 2 * batch, 8)),
        capacity=chance.choice((1, 2, 4, 8)),
        workers=chance.choice((1, 2)),
        servers=chance.choice((1, 2, 2)),
        publish_interval=chance.randint(1, min(2, ahead + 1)),
        checkpoint_interval=chance.choice((1, 2, 3)),
        filter_share=chance.choice((0.0, 0.2, 0.4, 0.6)),
        reject_share=chance.choice((0.0, 0.0, 0.1)),
        infra_share=chance.choice((0.0, 0.0, 0.1)),
        slow_share=chance.choice((0.0, 0.0, 0.1, 0.3)),
        endless_share=0.0,
        deadline_s=300.0,
        repeat_share=chance.choice((0.0, 0.0, 0.1)),
        evaluation_interval=chance.choice((0, 0, 2)),
        budget_groups=chance.choice(((staleness + 2) * batch * 5 // 4 + 2, 1000)),
        sample_s=chance.choice((0.2, 0.5, 1.0)),
        train_s=chance.choice((0.05, 0.3, 1.0)),
        load_s=chance.choice((0.05, 0.3, 1.0)),
        journal_s=chance.choice((0.03, 0.03, 0.5)),
        faults=(),
    )
    horizon_s = 1.0 + steps * (scenario.sample_s + scenario.train_s)
    if aim is None and chance.random() < _AIMED_SHARE:
        aim = chance.choice(tuple(Aim))
    if aim is Aim.ETA:  # one server must lag behind another, and η matter
        staleness = chance.choice((0, 1))
        scenario = replace(scenario, servers=2, max_staleness=staleness, ahead=staleness, publish_interval=1)
    if aim is Aim.FALLEN_RANKS:  # many groups must turn out filtered while later ones wait
        scenario = replace(
            scenario,
            batch_groups=chance.choice((1, 1, 2)),
            max_staleness=0,
            ahead=0,
            max_concurrent=8,
            publish_interval=1,
            checkpoint_interval=1,
            filter_share=0.6,
            budget_groups=1000,
        )
    if aim is Aim.LATE_VIEW:  # tokens are made while servers go back to an older version
        scenario = replace(scenario, sample_s=1.0, train_s=0.05, load_s=0.05, checkpoint_interval=1)
    if aim is Aim.OLD_WORKER:  # one must take over from the other
        scenario = replace(scenario, workers=2, capacity=8, max_concurrent=8, infra_share=0.3, sample_s=1.0)
    if aim is Aim.DEADLINE:  # a group of three closes with two
        scenario = replace(
            scenario, group_size=3, endless_share=0.15, deadline_s=8.0, reject_share=0.0, infra_share=0.0, sample_s=0.2
        )
    if aim is Aim.TAIL:  # deadlines are near, and not in the order of admission
        staleness = chance.choice((1, 2, 3))
        ahead = chance.randint(-(-staleness // 2), staleness)
        scenario = replace(
            scenario, max_staleness=staleness, ahead=ahead, slow_share=0.3, sample_s=0.2, train_s=0.05, load_s=0.05,
            max_steps=12, publish_interval=1, max_concurrent=20, capacity=20, servers=2,
            filter_share=0.4 * scenario.admission_order,
        )  # fmt: skip
    if aim is Aim.PART_IN_HAND:  # a group that is lost may end when it is made again
        scenario = replace(scenario, decode_s=12.0, reject_share=0.3, filter_share=0.3, sample_s=0.2)
    if aim is Aim.CLAIMS:  # one holds what must be trained next
        scenario = replace(
            scenario, workers=2, capacity=2, max_concurrent=20, slow_share=0.3, sample_s=0.5, train_s=0.05, load_s=0.05,
            filter_share=0.0, max_steps=8,
        )  # fmt: skip
    if scenario.max_concurrent == 1 or scenario.filter_share > 0.4:
        scenario = replace(scenario, slow_share=0.0)  # one after the other they would take all day
    if aim in _BY_TURNS and random.Random(f"{seed} shared").random() < _SHARED_SHARE:
        staleness = min(scenario.max_staleness, MOST_SHARED_STALENESS)
        interval = min(scenario.publish_interval, staleness + 1)
        scenario = replace(
            scenario, shared=True, max_staleness=staleness, ahead=min(scenario.ahead, staleness),
            publish_interval=interval,
        )  # fmt: skip
    if aim is None:
        faults, count = [], chance.choice((0, 1, 2, 3, 4, 6))
    else:
        faults, count = _aimed(chance, scenario, aim), chance.choice((0, 0, 1))
    faults += [_fault(chance, scenario, horizon_s) for _ in range(count)]
    return replace(scenario, faults=tuple(faults))


class Aim(StrEnum):
    """What several faults together try to hit."""

    BATCH_IN_HAND = "everything but the trainer dies while it holds a batch"
    PART_IN_HAND = "what the trainer took is lost and made again before its batch is whole"
    CURSOR = "everything dies when a cursor is acknowledged"
    TOMBSTONE = "the controller dies, or everything, when a tombstone is decided"
    ETA = "η changes and a server lags while a group is half done"
    ROLL_BACK = "the trainer goes back when a checkpoint was made"
    FALLEN_RANKS = "the trainer goes back below the version for which groups were first meant"
    POSITION = "the ledger forgets where the trainer went back to"
    DEADLINE = "a group's deadline passes while the controller or its machine dies"
    OLD_TRAINER = "a trainer that hangs is replaced, then goes on"
    OLD_CONTROLLER = "a controller that hangs is replaced, then goes on"
    OLD_WORKER = "a worker loses what it holds to another one without hearing of it"
    LATE_VIEW = "servers go back to an older version, and workers don't hear of it"
    LENGTH = "the run is shortened while groups beyond its end are made"
    TAIL = "some groups take so long that training has to wait for them, while a server lags and groups are lost"
    CLAIMS = "workers come back late with groups that a new controller doesn't know"
    POISON = "a batch can't be read, and its groups end"
    EDGE = "one role dies at one moment, with or without the ledger's tail"


_SHARED_SHARE = 0.4  # of the schedules that may be
_BY_TURNS = (  # the others depend on a lead, or on servers that lag
    None, Aim.BATCH_IN_HAND, Aim.CURSOR, Aim.EDGE, Aim.LENGTH, Aim.OLD_CONTROLLER, Aim.OLD_TRAINER, Aim.ROLL_BACK,
)  # fmt: skip


def _aimed(chance: random.Random, scenario: Scenario, aim: Aim) -> list[Fault]:
    after_s, nth = chance.choice((0.0, 0.0, 0.02, 0.1, 0.3)), chance.randint(1, 6)

    def at(point: Point, kind: FaultKind, target: int = 0, value: float = 0.0) -> Fault:
        return Fault(after_s, kind, target, value, point, nth)

    def loss(point: Point) -> list[Fault]:
        workers = [at(point, FaultKind.KILL_WORKER, worker) for worker in range(scenario.workers)]
        return [at(point, FaultKind.KILL_REDIS, 0, 1000.0), *workers]

    lag = Fault(0.0, FaultKind.LAG_SERVER, 0, 6.0, Point.PUBLISHED, chance.randint(1, 2))
    one_role = chance.choice((FaultKind.KILL_CONTROLLER, FaultKind.KILL_TRAINER))
    match aim:
        case Aim.BATCH_IN_HAND:
            return [at(Point.OFFERED, FaultKind.KILL_CONTROLLER), *loss(Point.OFFERED)]
        case Aim.PART_IN_HAND:
            return loss(Point.TOOK)
        case Aim.CURSOR:
            return [at(Point.ACKNOWLEDGED, FaultKind.KILL_CONTROLLER), *loss(Point.ACKNOWLEDGED)]
        case Aim.TOMBSTONE:
            alone = [at(Point.DECIDED, FaultKind.KILL_CONTROLLER)]
            return alone + (loss(Point.DECIDED) if chance.random() < 0.5 else [])
        case Aim.ETA:
            nth, eta = chance.randint(1, 20), chance.randint(2, 4)
            killed = [at(Point.STORED, FaultKind.KILL_WORKER, worker) for worker in range(scenario.workers)]
            return [at(Point.STORED, FaultKind.SET_ETA, 0, eta), *killed, lag]
        case Aim.ROLL_BACK:
            back = chance.choice((FaultKind.ROLL_BACK, FaultKind.ROLL_BACK, FaultKind.FALL_BACK))
            return [at(chance.choice((Point.SAVED, Point.COMMITTED)), back), *([lag] if chance.random() < 0.3 else [])]
        case Aim.FALLEN_RANKS:
            return [at(chance.choice((Point.SAVED, Point.COMMITTED, Point.DECIDED)), FaultKind.ROLL_BACK)]
        case Aim.POSITION:
            forgets = Fault(after_s, FaultKind.KILL_REDIS, 0, chance.choice((0.3, 1.0)), Point.RECOVERED, 2)
            return [at(Point.COMMITTED, FaultKind.FALL_BACK), forgets]
        case Aim.DEADLINE:
            dies = Fault(chance.uniform(8.0, 20.0), FaultKind.KILL_CONTROLLER, 0, chance.choice((0.0, 1.0)))
            late = [
                Fault(chance.uniform(7.0, 10.0), FaultKind.LATE_ORDERS, worker, 5.0)
                for worker in range(scenario.workers)
            ]
            return chance.choice(([dies], late, [dies, *late]))
        case Aim.LATE_VIEW:
            late = [at(Point.SAVED, FaultKind.LATE_ORDERS, worker, 6.0) for worker in range(scenario.workers)]
            return [at(Point.SAVED, FaultKind.ROLL_BACK), *late]
        case Aim.OLD_TRAINER:
            taken = (Point.RECOVERED, Point.OFFERED, Point.ACKNOWLEDGED, Point.SAVING, Point.SAVING, Point.PUBLISHED)
            return [at(chance.choice(taken), FaultKind.PAUSE_TRAINER, 0, chance.uniform(0.5, 4.0))]
        case Aim.OLD_CONTROLLER:
            points = (Point.OFFERED, Point.DECIDED, Point.TRAINED, Point.PUBLISHED, Point.STORED)
            point = chance.choice(points)
            hangs = at(point, FaultKind.PAUSE_CONTROLLER, 0, chance.uniform(0.3, 2.0))
            dies = Fault(after_s + chance.uniform(5.0, 9.0), FaultKind.KILL_CONTROLLER, 0, 0.0, point, nth)
            return [hangs, *chance.choice(([], [dies], [at(point, FaultKind.KILL_TRAINER)]))]
        case Aim.OLD_WORKER:
            kind = chance.choice((FaultKind.LATE_REPORTS, FaultKind.LATE_REPORTS, FaultKind.PAUSE_WORKER))
            drains = Fault(after_s + 0.5, FaultKind.DRAIN_WORKER, 0, 0.0, Point.STORED, nth)
            apart = at(Point.STORED, kind, 0, chance.uniform(2.5, 6.0))
            return [apart, drains] if chance.random() < 0.5 else [apart]
        case Aim.LENGTH:
            steps = chance.randint(1, max(1, scenario.max_steps - 1))
            return [at(chance.choice((Point.TRAINED, Point.STORED)), FaultKind.SET_MAX_STEPS, 0, steps)]
        case Aim.TAIL:
            first = chance.randint(2, 5)
            nth = first + scenario.max_staleness - chance.randint(1, 2)
            lost = chance.random() < 0.5  # one version too old for what is lost then
            seconds = 20.0 if lost else chance.choice((1.0, 4.0, 20.0))
            lags = [Fault(0.0, FaultKind.LAG_SERVER, 0, seconds, Point.PUBLISHED, first)]
            strikes = loss(chance.choice((Point.OFFERED, Point.TRAINED))) if lost else []
            killed = [Fault(chance.uniform(1.0, 4.0), one_role)] if chance.random() < 0.3 else []
            return [*lags, *strikes, *killed]
        case Aim.CLAIMS:
            claims = at(Point.STORED, FaultKind.LATE_REPORTS, chance.randint(0, 1), chance.uniform(4.0, 9.0))
            return [at(Point.STORED, FaultKind.KILL_CONTROLLER), claims]
        case Aim.POISON:
            poison = at(chance.choice((Point.TRAINED, Point.PUBLISHED)), FaultKind.POISON)
            return [poison, Fault(after_s, one_role, 0, 0.0, Point.DECIDED, nth)] if chance.random() < 0.3 else [poison]
        case Aim.EDGE:
            point = chance.choice(tuple(Point))
            tail = [at(point, FaultKind.KILL_REDIS, 0, 0.3)] if chance.random() < 0.5 else []
            return [at(point, one_role), *tail]


def _fault(chance: random.Random, scenario: Scenario, horizon_s: float) -> Fault:
    kind = chance.choice(_HEALING)
    at_s = round(chance.uniform(0.1, horizon_s), 3)
    match kind:
        case FaultKind.PAUSE_WORKER | FaultKind.LATE_REPORTS | FaultKind.LATE_ORDERS:
            return Fault(at_s, kind, chance.randrange(scenario.workers), chance.choice((0.5, 2.0, 5.0)))
        case FaultKind.PAUSE_SERVER | FaultKind.LATE_BEATS:
            return Fault(at_s, kind, chance.randrange(scenario.servers), chance.choice((0.5, 2.0, 5.0)))
        case FaultKind.PAUSE_TRAINER | FaultKind.PAUSE_CONTROLLER:
            return Fault(at_s, kind, 0, chance.choice((0.3, 1.0, 3.0)))
        case FaultKind.KILL_CONTROLLER:
            return Fault(at_s, kind, 0, chance.choice((0.0, 1.0)))
        case FaultKind.SET_CONCURRENT:
            return Fault(at_s, kind, 0, chance.choice((1, 3, 20)))
        case FaultKind.KILL_WORKER | FaultKind.DRAIN_WORKER | FaultKind.BREAK_STREAM:
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
