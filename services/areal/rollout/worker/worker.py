"""A rollout worker at work: its core, its runner and its streams, put together.

Owns the order of things: orders go to the core, the core's actions to the runner, endings back to the core, samples to
the ledger, and only what the ledger holds is told as done. Every half second it looks at the clock.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from areal.clients.generation import GenerationClient
from areal.clients.reward import RewardClient
from areal.ledger.async_client import AsyncLedger
from areal.net.heartbeat import PERIOD_S
from areal.net.kept_stream import KeptStream
from areal.observe.metrics import RoleMetrics
from areal.observe.traces import NO_TRACES, Traces
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.record.episode_ends import IN_FLIGHT, REPREFILLED, TokenFate
from areal.rollout.contract import wire
from areal.rollout.contract.values import (
    EvaluationAnswer,
    EvaluationGrant,
    FailureKind,
    SampleFailure,
    WorkerReport,
    WorkReport,
)
from areal.rollout.worker import recording
from areal.rollout.worker.core import Action, StartEpisode, StartEvaluation, StopGroup, WorkerCore
from areal.rollout.worker.episode_engine import EpisodeBoxes
from areal.rollout.worker.episode_run import EpisodeSettings
from areal.rollout.worker.recording import EpisodeRecording
from areal.rollout.worker.runner import EpisodeResult, EpisodeRunner, Key
from areal.rollout.worker.sessions import Sessions
from areal.rollout.worker.storing import Storer, trace_episode
from areal.v1 import common_pb2 as common
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from areal.workflow.base import RolloutWorkflow
from areal.workflow.tokenizer import Tokenizer

log = logging.getLogger(__name__)

ACTIONS_AT_ONCE = 64  # episodes begun or ended before the event loop serves others: about ten milliseconds


@dataclass(frozen=True)
class Identity:
    """Who this worker is, and what it may hold."""

    worker_id: str
    incarnation: str
    capacity_groups: int
    digests: common.Digests


@dataclass(frozen=True)
class WorkerTools:
    """What a worker works with; its owner opens and closes them."""

    client: GenerationClient
    reward: RewardClient | None
    ledger: AsyncLedger
    tokenizer: Tokenizer
    recording: EpisodeRecording
    waits: WaitRegistry
    progress: ProgressCounter
    metrics: RoleMetrics
    sessions: Sessions  # of agents
    boxes: EpisodeBoxes | None = None
    traces: Traces = NO_TRACES


class Worker:
    """`run` works until the controller says that the run is over, or `stop` is set."""

    def __init__(
        self,
        identity: Identity,
        tools: WorkerTools,
        settings: EpisodeSettings,
        make_workflow: Callable[[], RolloutWorkflow],
        controller: str,
        token: str,
        *,
        deadline_s: float,
        stall_s: float,
    ) -> None:
        self.core = WorkerCore()
        self.over = asyncio.Event()
        self._identity = identity
        self._tools = tools
        self._deadline_s = deadline_s
        self._runner = EpisodeRunner(
            tools.client,
            tools.reward,
            tools.tokenizer,
            settings,
            make_workflow,
            self._ended,
            stall_s=stall_s,
            sessions=tools.sessions,
            boxes=tools.boxes,
        )
        self._storer = Storer(self.core, tools.ledger, tools.waits, self._news, tools.traces)
        self._stream: KeptStream[rollout.WorkerMessage, rollout.WorkOrders] = KeptStream(
            controller,
            token,
            method=lambda channel: rollout_grpc.RolloutStub(channel).Work,
            hello=lambda: [self._message(self.core.hello(self._runner.has_tokens))],
            report=lambda: self._message(self.core.report()),
            on_message=self._ordered,
            waits=tools.waits,
            what="controller",
        )
        self._evaluations: dict[Key, EvaluationGrant] = {}
        self._evaluation_time: dict[Key, float] = {}
        self._actions: deque[Action] = deque()
        self._acting = False
        self._counted = (0, 0)
        self._token_fates: dict[str, int] = {}  # of one moment, not long ago
        self._draining = False
        self._ticked = time.monotonic()

    async def run(self, stop: asyncio.Event) -> bool:
        """Work; True when the controller ended the run, False when it was asked to stop."""
        tasks = {
            asyncio.create_task(self._stream.run(), name="controller stream"),
            asyncio.create_task(self._storer.run(), name="storing"),
            asyncio.create_task(self._clock(), name="clock"),
            asyncio.create_task(self.over.wait(), name="end of the run"),
            asyncio.create_task(stop.wait(), name="stop"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a part that failed ends the worker with its error
            if not self.over.is_set():
                self._draining = True
                self._do(self.core.release())
                self._act(len(self._actions))
                await self._storer.flush(timeout_s=2.0)
                self._count_tokens()
                await self._stream.finish(timeout_s=2.0)
            return self.over.is_set()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._runner.close()
            self._tools.recording.close()

    # ---- the controller

    def _message(self, report: WorkReport) -> rollout.WorkerMessage:
        identity, tools = self._identity, self._tools
        if report.evaluated and not self._evaluations:
            self._count_tokens()  # of the last answers, with which the run may end, before it takes them for lost
        told = WorkerReport(
            identity.worker_id,
            identity.incarnation,
            identity.capacity_groups,
            report,
            progress=tools.progress.value,
            tokens_total=tools.client.tokens_total,
            token_fates=self._token_fates,
        )
        return wire.worker_message(told, socket.gethostname(), tools.waits.list())

    def _ordered(self, orders: rollout.WorkOrders) -> None:
        core = self.core
        if not core.hears(orders.controller_fence):
            log.warning("orders under the old controller fence %d are ignored", orders.controller_fence)
            return
        if orders.stop:
            self.over.set()
            return
        if orders.fleet_changed:
            self._tools.client.update_fleet(orders.fleet)
        if orders.committed_group > core.committed:
            core.commit(orders.committed_group)
        for group in orders.revoked:
            self._do(core.revoke(group))
        for lease in orders.leases:
            self._do(core.grant(wire.grant(lease)))
        for row in orders.evaluations:
            self._do(core.grant_evaluation(wire.evaluation_grant(row)))
        if orders.resend:
            core.resend()
        self._news()

    def _do(self, actions: Iterable[Action]) -> None:
        """Carry out actions in their order, soon: a thousand leases in one message must not hold up the next beat."""
        self._actions.extend(actions)
        if self._actions and not self._acting:
            self._acting = True
            asyncio.get_running_loop().call_soon(self._act)

    def _act(self, most: int = ACTIONS_AT_ONCE) -> None:
        self._acting = False
        for _ in range(min(most, len(self._actions))):
            self._carry_out(self._actions.popleft())
        self._do(())

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartEpisode(group, index, attempt):
                held = self.core.groups.get(group)
                if held is None or not self.core.wants(group, index):
                    return  # revoked meanwhile
                self._runner.start(Key(group, index), held.grant.row_json, floor=held.grant.floor, attempt=attempt)
            case StopGroup(group):
                tokens = self._runner.stop_group(group)
                self.core.token_fates[TokenFate.LOST if self._draining else TokenFate.ABORTED] += tokens
            case StartEvaluation(grant):
                key = Key(grant.row, grant.sample, grant.evaluation_id)
                self._evaluations[key] = grant
                self._evaluation_time[key] = self._deadline_s
                self._runner.start(key, grant.row_json, floor=grant.floor)

    def _news(self) -> None:
        if self.core.storing:
            self._storer.wake()
        if self.core.has_news:
            self._stream.wake()

    # ---- endings

    def _ended(self, key: Key, ending: EpisodeResult) -> None:
        outcome = ending.kind.value or ("truncated" if ending.episode and ending.episode.truncated else "ok")
        self._tools.metrics.counter("areal_worker_episodes_total", outcome=outcome).inc()
        self._tools.progress.advance()
        if ending.kind not in (FailureKind.NONE, FailureKind.REJECTED):
            log.warning("episode %s: %s: %s\n%s", _name(key), ending.kind.value, ending.message, ending.traceback)
        if ending.episode is None:
            self._tools.recording.failed(key, ending, self._row_of(key))
        if key.evaluation:
            self._evaluated(key, ending)
        else:
            self._sampled(key, ending)
        self._news()

    def _sampled(self, key: Key, ending: EpisodeResult) -> None:
        held = self.core.groups.get(key.group)
        if held is None or not self.core.wants(key.group, key.index):
            self.core.token_fates[TokenFate.ABORTED] += ending.sampled
            return
        grant = held.grant
        trace_episode(self._tools.traces, key, grant.attempt, ending, time.time())
        if ending.episode is None:
            if ending.kind is not FailureKind.INFRA:  # what no next try takes up of it is lost
                self.core.token_fates[TokenFate.ABORTED] += ending.sampled
            self.core.failed(
                SampleFailure(
                    key.group, key.index, grant.attempt, ending.kind, ending.message, ending.fix, ending.traceback
                )
            )
            return
        origin = recording.Origin(
            group=key.group,
            index=key.index,
            attempt=grant.attempt,
            max_staleness=grant.max_staleness,
            worker_id=self._identity.worker_id,
            digests=self._identity.digests,
            verdict=ending.verdict,
        )
        made = recording.build(ending.episode, origin)
        made = replace(made, meta=replace(made.meta, sampled=ending.sampled, moved=ending.moved))
        self.core.made(made)
        self._tools.recording.sampled(key, ending, made.payload, grant.row_json)

    def _evaluated(self, key: Key, ending: EpisodeResult) -> None:
        grant = self._evaluations.pop(key, None)
        self._evaluation_time.pop(key, None)
        self.core.token_fates[TokenFate.EVALUATED] += ending.sampled
        if grant is None:
            return
        answer = EvaluationAnswer(grant.evaluation_id, grant.row, kind=ending.kind, sample=grant.sample)
        if ending.episode is None:
            self.core.evaluated(replace(answer, message=ending.message, traceback=ending.traceback))
            return
        versions = recording.versions_of(ending.episode)
        assert versions is not None, "an episode without a sampled token was checked"
        oldest, newest = versions
        score = ending.episode.reward
        self.core.evaluated(replace(answer, score=score, oldest_version=oldest, newest_version=newest))
        self._tools.recording.evaluated(key, ending, grant.row_json)

    def _row_of(self, key: Key) -> bytes:
        grant, held = self._evaluations.get(key), self.core.groups.get(key.group)
        if key.evaluation:
            return grant.row_json if grant is not None else b""
        return held.grant.row_json if held is not None else b""

    # ---- time

    async def _clock(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            self._tick(time.monotonic())

    def _tick(self, now: float) -> None:
        client, metrics = self._tools.client, self._tools.metrics
        self._runner.tick(now)
        self._count_tokens()
        for late in self.core.tick(now, client.can_serve):
            for index in late.indices:
                self._runner.expire(Key(late.group, index), keep_partial=late.keep_partial)
        self._expire_evaluations(now - self._ticked)
        self._ticked = now
        self._tools.progress.doing = f"{len(self.core.groups)} groups, {self._runner.running} episodes"
        metrics.gauge("areal_worker_groups_held").set(len(self.core.groups))
        counted = (self.core.duplicates_total, self.core.resent_total)
        metrics.counter("areal_replay_duplicates_refused_total").inc(counted[0] - self._counted[0])
        metrics.counter("areal_replay_resent_total").inc(counted[1] - self._counted[1])
        self._counted = counted

    def _count_tokens(self) -> None:
        """What became of the tokens received, all of one moment: to sum them up with each message takes too long."""
        in_work = self._runner.tokens_in_work + self.core.unstored_tokens
        again = self._tools.client.reprefilled_total
        self._token_fates = {**self.core.token_fates, IN_FLIGHT: in_work, REPREFILLED: again}

    def _expire_evaluations(self, seconds: float) -> None:
        for key, grant in list(self._evaluations.items()):
            if self._tools.client.can_serve(grant.floor):
                self._evaluation_time[key] -= seconds
            if self._evaluation_time[key] <= 0:
                self._runner.expire(key, keep_partial=False)


def _name(key: Key) -> str:
    if key.evaluation:
        return f"of evaluation {key.evaluation}, row {key.group}"
    return f"{key.index} of group {key.group}"
