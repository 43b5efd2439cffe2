"""A rollout worker in the simulation: the real worker core; episodes, ledger and stream in virtual time.

An episode makes a few tokens, each on a server that its view of the fleet names and that then really holds a version of
at least the group's floor: the routing client's choice and the agent's own check under its swap lock.
"""

import random
from collections import Counter

from areal.clients.generation.routing import RoutedServer, choose
from areal.ledger.values import NewSample, SampleMeta
from areal.record.episode_ends import IN_FLIGHT, TokenFate
from areal.rollout.contract.values import (
    EvaluationAnswer,
    EvaluationGrant,
    FailureKind,
    Grant,
    SampleFailure,
    WorkerReport,
)
from areal.rollout.controller.carrier import WorkOrder
from areal.rollout.controller.decisions import GrantLease, LeaseEvaluation, Revoke
from areal.rollout.controller.inputs import WorkerBeat
from areal.rollout.worker.core import Action, StartEpisode, StartEvaluation, StopGroup, WorkerCore

from simulation.controller_role import Connection, ControllerProcess, ControllerRole, SimStream
from simulation.scenario import SLOW_TOKENS, Point
from simulation.scheduler import Incarnation, Pipe, Process
from simulation.server_role import ServerRole, told
from simulation.world import SimWorld, TrueSample

TOKENS = 2  # enough for a swap between them
_BEAT_S = 0.5
_ENDLESS_TOKENS = 1_000  # more than any deadline leaves time for


class WorkerProcess:
    """One incarnation of a worker: begins empty, and dies with everything it holds."""

    def __init__(
        self, world: SimWorld, name: str, incarnation: int, controller: ControllerRole, servers: list[ServerRole]
    ) -> None:
        self.world = world
        self.name = name
        self.life = Incarnation(world.scheduler)
        self._incarnation = incarnation
        self._servers = servers
        self._connection = Connection(world, controller)
        self._core = WorkerCore()
        self._fleet: list[RoutedServer] = []
        self._stream: SimStream | None = None
        self._peer: ControllerProcess | None = None  # at the stream's other end
        self._tokens: dict[int, int] = {}  # group → tokens of episodes in work
        self._in_work: Counter[tuple[int, int, int]] = Counter()  # tokens by group, index, attempt
        self._drained = False
        self._storing = self._reporting = False
        self._obeyed = 0  # newest controller fence that it was told
        self.up, self.down = Pipe(world.scheduler), Pipe(world.scheduler)
        self.life.start(self._beats())

    def break_stream(self) -> None:
        """The connection breaks. What was on its way up arrives late, what was on its way down is lost."""
        if self._stream is not None:
            self._stream.open = False
        self._stream = None
        self.up, self.down = Pipe(self.world.scheduler), Pipe(self.world.scheduler)

    def drain(self) -> None:
        """Give back what it holds."""
        if self.life.alive and self.life.paused_at is None:
            self._drained = True
            self._do(self._core.release())
            self._send()

    # ---- the stream

    def _beats(self) -> Process:
        while True:
            self._send()
            yield _BEAT_S

    def _send(self) -> None:
        if (process := self._connection.process()) is None:
            self.break_stream()
            return
        first = self._stream is None or not self._stream.open or self._peer is not process
        if first:
            self.break_stream()
            self._peer, self._stream = process, process.open_stream(self.name, self, self.down)
            report = self._core.hello(lambda group: self._tokens.get(group, 0) > 0)
            if process.life.paused_at is None:
                self.told_fleet(process.fleet())
        else:
            report = self._core.report()
        _, incarnation, fates = self.last_words()
        told = WorkerReport(self.name, incarnation, self.world.scenario.capacity, report, token_fates=fates)
        self.up.send(process.post, WorkerBeat(told))

    def last_words(self) -> tuple[str, str, dict[str, int]]:
        """What it would tell now of its tokens: process, incarnation, counts."""
        fates = {str(fate): count for fate, count in self._core.token_fates.items()}
        fates[IN_FLIGHT] = self._in_work.total() + self._core.unstored_tokens
        return f"worker/{self.name}", str(self._incarnation), fates

    def _news(self) -> None:
        if self._core.has_news and not self._reporting:
            self._reporting = True
            self.life.after(0.003, self._report_news)

    def _report_news(self) -> None:
        self._reporting = False
        if self._stream is not None and self._stream.open and self._peer is self._connection.process():
            self._send()

    # ---- orders

    def told_fleet(self, fleet: list[tuple[int, int]]) -> None:
        """The controller's view of the servers."""
        self._fleet = told(fleet, self.world.scheduler.random)

    def ordered(self, orders: list[WorkOrder], fence: int, committed: int) -> None:
        """Orders arrive."""
        if self.life.paused_at is not None:
            self.life.after(0.0, self.ordered, orders, fence, committed)
            return
        if not self.life.alive or not self._core.hears(fence):
            return
        self._obeyed = self.world.obeyed(self.name, fence, self._obeyed)
        core = self._core
        if committed > core.committed:
            core.commit(committed)
        for order in orders:
            match order:
                case Revoke(_, group):
                    self._do(core.revoke(group))
                case GrantLease():
                    terms = (order.floor, order.max_staleness, b"", order.deadline_s)
                    size = self.world.scenario.group_size
                    self._do(core.grant(Grant(order.group, order.attempt, order.missing, size, *terms)))
                case LeaseEvaluation(_, evaluation_id, row, floor):
                    self._do(core.grant_evaluation(EvaluationGrant(evaluation_id, row, floor, b"")))
        self._store_soon()
        self._news()

    def told_to_resend(self, fence: int) -> None:
        """The ledger lost data."""
        if self.life.paused_at is not None:
            self.life.after(0.0, self.told_to_resend, fence)
        elif self.life.alive and self._core.hears(fence):
            self._core.resend()
            self._store_soon()

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartEpisode(group, index, attempt):
                    self.life.start(self._episode(group, index, attempt))
                case StartEvaluation(grant):
                    self.life.start(self._evaluate(grant))
                case StopGroup(group):
                    self._tokens.pop(group, None)

    # ---- episodes

    def _mine(self, group: int, index: int, attempt: int) -> bool:
        held = self._core.groups.get(group)
        return held is not None and self._core.wants(group, index) and held.grant.attempt >= attempt

    def _episode(self, group: int, index: int, attempt: int) -> Process:
        scheduler, scenario = self.world.scheduler, self.world.scenario
        grant = self._core.groups[group].grant
        versions: list[int] = []
        first_token_s, moved, server, key = 0.0, 0, "", (group, index, attempt)
        for _ in range(self._tokens_of(group, index)):
            yield scheduler.between(0.1, 1.0) * scenario.sample_s
            while True:
                if not self._mine(group, index, attempt):
                    fate = TokenFate.LOST if self._drained else TokenFate.ABORTED
                    self._core.token_fates[fate] += self._in_work.pop(key, 0)
                    return
                if (made := self._sample(grant.floor)) is not None:
                    break
                yield 0.1
            moved, server = (moved, server) if made[0] == server else (len(versions), made[0])
            versions.append(made[1])
            self._in_work[key] += 1
            first_token_s = first_token_s or scheduler.now
            self._tokens[group] = self._tokens.get(group, 0) + 1
        self._tokens[group] = 0
        del self._in_work[key]
        chance = random.Random(f"{scenario.seed} {group} {index} {attempt}")
        if attempt == 1 and chance.random() < scenario.infra_share:
            self.world.truth.failed_tokens += len(versions)
            self._core.failed(SampleFailure(group, index, attempt, FailureKind.INFRA, "scripted"))
        elif random.Random(f"{scenario.seed} {group} {attempt}").random() < scenario.reject_share:
            self._core.token_fates[TokenFate.ABORTED] += len(versions)
            self._core.failed(SampleFailure(group, index, attempt, FailureKind.REJECTED, "scripted"))
        else:
            sample = TrueSample(tuple(versions), first_token_s, grant.max_staleness)
            self._made(group, index, attempt, sample, chance, moved)
        self._store_soon()
        self._news()

    def _tokens_of(self, group: int, index: int) -> int:
        """Most samples are short; some don't end before their group's deadline, half of those soon after it."""
        scenario = self.world.scenario
        if random.Random(f"{scenario.seed} slow {group}").random() < scenario.slow_share:
            return SLOW_TOKENS
        chance = random.Random(f"{scenario.seed} endless {group} {index}").random() / (scenario.endless_share or 1e-9)
        late = round(scenario.deadline_s / (0.55 * scenario.sample_s)) + 5
        return TOKENS if chance >= 1.0 else late if chance < 0.5 else _ENDLESS_TOKENS

    def _made(
        self, group: int, index: int, attempt: int, sample: TrueSample, chance: random.Random, moved: int
    ) -> None:
        # Each try has its own luck: a group that is made again may be filtered where it was complete before.
        luck = f"{self.world.scenario.seed} {group} {attempt} {self.name} {self._incarnation}"
        filtered = random.Random(luck).random()
        reward = 1.0 if filtered < self.world.scenario.filter_share else chance.random()
        made = sample.versions
        meta = SampleMeta(
            attempt, reward, min(made), max(made), sample.eta, len(made), False, 0, self.name, False, len(made), moved
        )
        self.world.log(lambda: f"{self.name}: sample {group}.{index} of versions {sample.versions}")
        self._core.made(NewSample(group, index, self.world.truth.payload(sample), meta))

    def _sample(self, floor: int) -> tuple[str, int] | None:
        """One token: its server and that one's version, None when no server may make it now."""
        if (chosen := choose(self._fleet, floor)) is None:
            return None
        version = self._servers[int(chosen)].token(floor)
        return None if version is None else (chosen, version)

    def _evaluate(self, grant: EvaluationGrant) -> Process:
        yield self.world.scheduler.between(0.05, 0.3)
        while (made := self._sample(grant.floor)) is None:
            yield 0.1
        self._core.token_fates[TokenFate.EVALUATED] += 1
        self._core.evaluated(EvaluationAnswer(grant.evaluation_id, grant.row, 1.0, made[1], made[1]))
        self._news()

    # ---- the ledger

    def _store_soon(self) -> None:
        if self._core.storing and not self._storing:
            self._storing = True
            self.life.after(self.world.scheduler.between(0.001, 0.02), self._store)

    def _store(self) -> None:
        samples = self._core.take_to_store(64)
        if not self.world.store.up:
            self._core.not_stored(samples)
            self.life.after(0.1, self._store)
            return
        self._storing = False
        ledger, repeats = self.world.store.ledger(), self.world.scenario.repeat_share
        results = [ledger.add_sample(s.group, s.index, s.payload, s.meta) for s in samples]
        if repeats and self.world.scheduler.random.random() < repeats:  # the answer is lost
            self._core.not_stored(samples)
            self.life.after(0.1, self._store_soon)
        else:
            self.life.after(0.001, self._stored, samples, results)
        for _ in samples:
            self.world.on_point(Point.STORED)

    def _stored(self, samples: list[NewSample], results: list[object]) -> None:
        for sample, result in zip(samples, results, strict=True):
            self._core.stored(sample, result)  # type: ignore[arg-type]
        self._store_soon()
        self._news()


class WorkerRole:
    """The name of worker `index`."""

    def __init__(self, world: SimWorld, index: int, controller: ControllerRole, servers: list[ServerRole]) -> None:
        self.name = f"worker-{index}"
        self.current: WorkerProcess | None = None
        self._world = world
        self._controller = controller
        self._servers = servers
        self._incarnations = 0

    def start(self) -> None:
        """Another process begins."""
        self._incarnations += 1
        self.current = WorkerProcess(self._world, self.name, self._incarnations, self._controller, self._servers)
