"""A rollout worker in the simulation: the real worker core; episodes, ledger and stream in virtual time.

An episode makes a few tokens, each on a server that its view of the fleet names and that then really holds a version of
at least the group's floor: the routing client's choice and the agent's own check under its swap lock.
"""

from __future__ import annotations

import random

from areal.clients.generation.routing import Server, choose
from areal.ledger.values import NewSample, SampleMeta
from areal.rollout.controller.decisions import (
    Decision,
    FloorChanged,
    GrantLease,
    LeaseEvaluation,
    Resend,
    Revoke,
)
from areal.rollout.controller.reports import (
    EvaluationReport,
    FailureReport,
    HeldReport,
    SampleReport,
    WorkerReport,
)
from areal.rollout.controller.reports import FailureKind as Kind
from areal.rollout.worker.core import Action, Start, StartEvaluation, Stop, WorkerCore
from areal.rollout.worker.reports import Done, Evaluated, EvaluationGrant, Failure, FailureKind, Grant, Report
from areal.sim.controller_role import ControllerRole
from areal.sim.scenario import Point
from areal.sim.scheduler import Life, Pipe, Process
from areal.sim.server_role import ServerRole, told
from areal.sim.world import TrueSample, World

TOKENS = 2  # enough for a swap between them
_BEAT_S = 0.5


class WorkerRole:
    """Worker `index`. Dies with everything it holds and comes back empty."""

    def __init__(self, world: World, index: int, controller: ControllerRole, servers: list[ServerRole]) -> None:
        self.world = world
        self.index = index
        self.name = f"worker-{index}"
        self.incarnation = 0
        self._controller = controller
        self._servers = servers
        self._life = Life(world.scheduler)
        self.down = Pipe(world.scheduler)

    def start(self) -> None:
        """Come up empty."""
        self._life = Life(self.world.scheduler)
        self.incarnation += 1
        self._core = WorkerCore()
        self._fleet: list[Server] = []
        self._stream = 0  # incarnation of the controller that our stream leads to; 0 is none
        self._tokens: dict[int, int] = {}  # group → tokens of episodes in work
        self._storing = self._reporting = False
        self._up, self.down = Pipe(self.world.scheduler), Pipe(self.world.scheduler)
        self._life.start(self._beats())

    def kill(self) -> None:
        """Die."""
        self._life.end()

    def break_stream(self) -> None:
        """The connection breaks; messages on it are lost."""
        self._stream = 0
        self._controller.workers.pop(self.name, None)

    # ---- the stream

    def _beats(self) -> Process:
        while True:
            self._send()
            yield _BEAT_S

    def _send(self) -> None:
        controller = self._controller
        if controller.core is None:
            self._stream = 0
            return
        first = self._stream != controller.incarnation
        if first:
            self._stream = controller.incarnation
            controller.workers[self.name] = (self.incarnation, self)
            report = self._core.hello(lambda group: self._tokens.get(group, 0) > 0)
            self.told_fleet(controller.fleet(controller.core))
        else:
            report = self._core.report()
        message = self._message(report, first=first)
        self._up.send(self._arrive, message, self._stream, self.incarnation)

    def _arrive(self, message: WorkerReport, stream: int, incarnation: int) -> None:
        controller = self._controller
        open_stream = controller.workers.get(self.name)
        if controller.core is not None and controller.incarnation == stream and open_stream == (incarnation, self):
            controller.post(lambda core, now: core.worker(now, message))

    def _news(self) -> None:
        if self._core.has_news and not self._reporting:
            self._reporting = True
            self._life.after(0.003, self._report_news)

    def _report_news(self) -> None:
        self._reporting = False
        if self._stream == self._controller.incarnation and self._controller.core is not None:
            self._send()

    def _message(self, report: Report, *, first: bool) -> WorkerReport:
        held = tuple(HeldReport(h.group, h.attempt, h.indices, h.max_staleness, h.has_tokens) for h in report.held)
        return WorkerReport(
            worker_id=self.name,
            incarnation=str(self.incarnation),
            capacity=self.world.scenario.capacity,
            held=held if first else None,
            done=tuple(_sample_report(done) for done in report.done),
            failures=tuple(
                FailureReport(f.group, f.index, f.attempt, Kind(f.kind.value), f.message) for f in report.failures
            ),
            evaluated=tuple(
                EvaluationReport(e.evaluation_id, e.row, e.score, e.oldest_version, e.newest_version)
                for e in report.evaluated
            ),
            released=tuple(report.released),
        )

    # ---- orders

    def told_fleet(self, fleet: list[tuple[int, int]]) -> None:
        """The controller's view of the servers."""
        self._fleet = told(fleet, self.world.scheduler.random)

    def ordered(self, orders: list[Decision], fence: int, committed: int) -> None:
        """Orders arrive."""
        if not self._life.alive or not self._core.hears(fence):
            return
        core = self._core
        if committed > core.committed:
            core.commit(committed)
        for order in orders:
            match order:
                case Revoke(_, group):
                    self._do(core.revoke(group))
                case GrantLease():
                    self._do(core.grant(self._grant(order)))
                case FloorChanged(_, group, floor):
                    core.change_floor(group, floor)
                case LeaseEvaluation(_, evaluation_id, row, floor):
                    self._do(core.grant_evaluation(EvaluationGrant(evaluation_id, row, floor, b"")))
                case Resend():
                    core.resend()
                case _:
                    pass
        self._store_soon()
        self._news()

    def _grant(self, lease: GrantLease) -> Grant:
        size = self.world.scenario.group_size
        return Grant(
            lease.group, lease.attempt, lease.missing, size, lease.floor, lease.max_staleness, b"", lease.deadline_s
        )

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(group, index, attempt):
                    self._life.start(self._episode(group, index, attempt))
                case StartEvaluation(grant):
                    self._life.start(self._evaluate(grant))
                case Stop(group):
                    self._tokens.pop(group, None)

    # ---- episodes

    def _mine(self, group: int, index: int, attempt: int) -> bool:
        held = self._core.groups.get(group)
        return held is not None and self._core.wants(group, index) and held.grant.attempt >= attempt

    def _episode(self, group: int, index: int, attempt: int) -> Process:
        scheduler, scenario = self.world.scheduler, self.world.scenario
        eta = self._core.groups[group].grant.max_staleness
        versions: list[int] = []
        first_token_s = 0.0
        for _ in range(TOKENS):
            yield scheduler.between(0.1, 1.0) * scenario.sample_s
            while True:
                if not self._mine(group, index, attempt):
                    return
                version = self._sample(self._core.groups[group].floor)
                if version is not None:
                    break
                yield 0.1
            versions.append(version)
            first_token_s = first_token_s or scheduler.now
            self._tokens[group] = self._tokens.get(group, 0) + 1
        self._tokens[group] = 0
        chance = random.Random(f"{scenario.seed} {group} {index} {attempt}")
        if attempt == 1 and chance.random() < scenario.infra_share:
            self._core.failed(Failure(group, index, attempt, FailureKind.INFRA, "scripted"))
        elif random.Random(f"{scenario.seed} {group}").random() < scenario.reject_share:
            self._core.failed(Failure(group, index, attempt, FailureKind.REJECTED, "scripted"))
        else:
            self._made(group, index, attempt, TrueSample(tuple(versions), first_token_s, eta), chance)
        self._store_soon()
        self._news()

    def _made(self, group: int, index: int, attempt: int, sample: TrueSample, chance: random.Random) -> None:
        # Each try has its own luck: a group that is made again may be filtered where it was complete before.
        luck = f"{self.world.scenario.seed} {group} {attempt} {self.name} {self.incarnation}"
        filtered = random.Random(luck).random()
        reward = 1.0 if filtered < self.world.scenario.filter_share else chance.random()
        meta = SampleMeta(
            attempt,
            reward,
            min(sample.versions),
            max(sample.versions),
            sample.eta,
            len(sample.versions),
            False,
            0,
            self.name,
        )
        self.world.log(lambda: f"{self.name}: sample {group}.{index} of versions {sample.versions}")
        self._core.made(NewSample(group, index, self.world.truth.payload(sample), meta))

    def _sample(self, floor: int) -> int | None:
        """One token: its server's version, None when no server may make it now."""
        chosen = choose(self._fleet, floor)
        return self._servers[int(chosen)].token(floor) if chosen is not None else None

    def _evaluate(self, grant: EvaluationGrant) -> Process:
        yield self.world.scheduler.between(0.05, 0.3)
        while (version := self._sample(grant.floor)) is None:
            yield 0.1
        self._core.evaluated(Evaluated(grant.evaluation_id, grant.row, 1.0, version, version))
        self._news()

    # ---- the ledger

    def _store_soon(self) -> None:
        if self._core.storing and not self._storing:
            self._storing = True
            self._life.after(self.world.scheduler.between(0.001, 0.02), self._store)

    def _store(self) -> None:
        samples = self._core.take_to_store(64)
        if not self.world.store.up:
            self._core.not_stored(samples)
            self._life.after(0.1, self._store)
            return
        self._storing = False
        ledger = self.world.store.ledger()
        results = [ledger.add_sample(s.group, s.index, s.payload, s.meta) for s in samples]
        self._life.after(0.001, self._stored, samples, results)
        for _ in samples:
            self.world.on_point(Point.STORED)

    def _stored(self, samples: list[NewSample], results: list[object]) -> None:
        for sample, result in zip(samples, results, strict=True):
            self._core.stored(sample, result)  # type: ignore[arg-type]
        self._store_soon()
        self._news()


def _sample_report(done: Done) -> SampleReport:
    meta = done.meta
    return SampleReport(
        done.group, done.index, meta.reward, meta.oldest_version, meta.newest_version, meta.max_staleness, meta.tokens
    )
