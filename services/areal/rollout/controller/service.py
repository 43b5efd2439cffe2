"""The gRPC face of the controller: three heartbeat streams, the trainer's and operator's calls, and the status message.

Owns the translation between messages and inputs. Decides nothing: every message goes into the core's queue, every
answer comes from it.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import grpc

from areal.errors import ArealError, FencedError
from areal.net import status as net_status
from areal.net.status import idle_to_wire, kind_to_wire, phase_from_wire, phase_to_wire
from areal.rollout.contract import wire as contract
from areal.rollout.contract.values import fields_of
from areal.rollout.controller import inputs
from areal.rollout.controller.core import Controller
from areal.rollout.controller.gauges import batch_waits, idle_of
from areal.rollout.controller.inputs import PublishedWeights, RefusalReport, ServerReport, TrainerReport
from areal.rollout.controller.loop import CoreLoop
from areal.rollout.controller.streams import BEAT_S, Outbox, WorkerStream
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from areal.values.policy import PolicyId

log = logging.getLogger(__name__)

FLEET_S = 1e-4  # between two messages with the whole fleet, a server: a thousand that swap at once are told by tenths
FLEET_AGE_S = 0.1  # of loads; any other change is told as it is

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Heard = TypeVar("Heard")


@contextlib.contextmanager
def _listening(
    messages: AsyncIterator[Heard], outbox: Outbox[Any], hear: Callable[[Heard], None], close: Callable[[], None]
) -> Iterator[None]:
    """Hears the peer's messages while orders go out to it. The end of its messages ends its orders."""

    async def listen() -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
            async for message in messages:
                hear(message)
        outbox.end()

    reader = asyncio.create_task(listen())
    try:
        yield
    finally:
        reader.cancel()
        close()


class RolloutService(rollout_grpc.RolloutServicer):
    """Serves one core. Reads of the core happen on its own event loop, between two of its steps."""

    def __init__(self, job: str, core: Controller, loop: CoreLoop, fence: int) -> None:
        self._job = job
        self._core = core
        self._loop = loop
        self._streams = loop.streams
        self._fence = fence
        self._epochs: dict[str, int] = {}  # worker incarnation → ledger epoch for which it was told to send again

    # ---- streams

    async def Work(
        self, request_iterator: AsyncIterator[rollout.WorkerMessage], context: Context
    ) -> AsyncIterator[rollout.WorkOrders]:
        if (first := await anext(request_iterator, None)) is None:
            return
        stream = WorkerStream(first.worker_id, first.beat.incarnation, self._complete_work)
        self._streams.open_worker(stream)
        log.info("worker %.80r opened a stream, holding %d groups", first.worker_id, len(first.held))
        self._loop.post(inputs.WorkerBeat(contract.worker_report(first, first=True)))

        def hear(message: rollout.WorkerMessage) -> None:
            self._loop.post(inputs.WorkerBeat(contract.worker_report(message, first=False)))

        with _listening(request_iterator, stream.outbox, hear, lambda: self._streams.close_worker(stream)):
            while (orders := await stream.outbox.next()) is not None:
                yield orders

    def _complete_work(self, stream: WorkerStream, orders: rollout.WorkOrders) -> None:
        core = self._core
        orders.controller_fence = self._fence
        orders.committed_group = core.book.order.low
        if self._epochs.get(stream.incarnation) != core.book.epoch:
            self._epochs[stream.incarnation] = core.book.epoch
            orders.resend = True
        if core.done:
            orders.stop = True
        now = time.monotonic()
        rest = stream.fleet_told_at + FLEET_S * len(core.fleet.servers) - now
        if stream.fleet_due and rest > 0:
            asyncio.get_running_loop().call_later(rest, stream.outbox.wake)
        elif stream.fleet_due or now - stream.fleet_told_at >= BEAT_S:
            made_at, told = self._fleet(now)
            if stream.fleet_due or told != stream.fleet_told:
                orders.fleet_changed = True
                orders.MergeFromString(told)
            stream.fleet_told, stream.fleet_told_at = told, now
            stream.fleet_due = made_at <= self._streams.fleet_changed_at
            if stream.fleet_due:
                asyncio.get_running_loop().call_later(FLEET_S * len(core.fleet.servers), stream.outbox.wake)

    def _fleet(self, now: float) -> tuple[float, bytes]:
        """All servers as part of a message, and since when they are so: made once for all workers that hear of it."""
        streams, servers = self._streams, self._core.fleet.servers.values()
        made_at, changed = streams.fleet[0], streams.fleet[0] <= streams.fleet_changed_at
        if now - made_at > (FLEET_S * len(servers) if changed else FLEET_AGE_S):
            states = [server_state(s.report, live=s.live, ready=s.ready) for s in servers]
            streams.fleet = now, rollout.WorkOrders(fleet=states).SerializeToString()
        return streams.fleet

    async def Serve(
        self, request_iterator: AsyncIterator[rollout.ServerMessage], context: Context
    ) -> AsyncIterator[rollout.ServerOrders]:
        outbox: Outbox[rollout.ServerOrders] = Outbox(
            rollout.ServerOrders, self._complete_serve, beat_s=self._streams.server_beat_s
        )
        outbox.wake()
        self._streams.servers.add(outbox)

        def hear(message: rollout.ServerMessage) -> None:
            self._loop.post(inputs.ServerBeat(server_report(message)))

        with _listening(request_iterator, outbox, hear, lambda: self._streams.servers.discard(outbox)):
            while (orders := await outbox.next()) is not None:
                yield orders

    def _complete_serve(self, orders: rollout.ServerOrders) -> None:
        if (wanted := self._core.wanted) is not None:
            orders.wanted.CopyFrom(weights_ref(wanted))
        if (turns := self._core.turns) is not None:
            orders.turn, orders.sleep = turns.number, turns.training

    async def Train(
        self, request_iterator: AsyncIterator[rollout.TrainerMessage], context: Context
    ) -> AsyncIterator[rollout.TrainerOrders]:
        outbox: Outbox[rollout.TrainerOrders] = Outbox(rollout.TrainerOrders, self._complete_train)
        outbox.wake()
        self._streams.trainers.add(outbox)
        fenced: list[FencedError] = []

        def hear(message: rollout.TrainerMessage) -> None:
            if message.beat.fence < (alive := self._core.desk.fence):
                fenced.append(FencedError(f"trainer fence {message.beat.fence} is over: {alive} is alive"))
                outbox.end()
            else:
                self._loop.post(inputs.TrainerBeat(trainer_report(message)))

        with _listening(request_iterator, outbox, hear, lambda: self._streams.trainers.discard(outbox)):
            while (orders := await outbox.next()) is not None:
                yield orders
            if fenced:
                await net_status.abort(context, fenced[0])

    def _complete_train(self, orders: rollout.TrainerOrders) -> None:
        core = self._core
        orders.checkpoint_now = core.desk.checkpoint_now
        orders.max_steps = core.max_steps
        orders.max_staleness = core.settings.max_staleness
        orders.served_policy_id = core.fleet.served.policy_id if core.fleet.served else ""
        orders.evaluation_done = core.done
        orders.evaluated_rows = core.evaluations.ended_rows
        orders.due_step = core.book.order.chosen
        orders.due_groups.extend(core.book.order.certain(core.book.groups))
        if core.turns is not None:
            orders.turn, orders.train = core.turns.number, core.turns.training

    # ---- calls

    async def _ask(self, call: inputs.Call, context: Context) -> bool:
        try:
            return await self._loop.ask(call)
        except ArealError as error:
            await net_status.abort(context, error)

    async def AttachTrainer(
        self, request: rollout.AttachTrainerRequest, context: Context
    ) -> rollout.AttachTrainerResponse:
        await self._ask(inputs.AttachTrainer(request.fence, request.step), context)
        core = self._core
        log.info("trainer f%d attached at step %d", request.fence, request.step)
        return rollout.AttachTrainerResponse(
            controller_fence=self._fence,
            served_policy_id=core.fleet.served.policy_id if core.fleet.served else "",
            max_steps=core.max_steps,
            max_staleness=core.settings.max_staleness,
        )

    async def AdvanceTrainer(
        self, request: rollout.AdvanceTrainerRequest, context: Context
    ) -> rollout.AdvanceTrainerResponse:
        await self._ask(inputs.AdvanceTrainer(request.fence, request.step, request.groups), context)
        core = self._core
        return rollout.AdvanceTrainerResponse(
            checkpoint_now=core.desk.checkpoint_now, max_steps=core.max_steps, max_staleness=core.settings.max_staleness
        )

    async def PublishWeights(
        self, request: rollout.PublishWeightsRequest, context: Context
    ) -> rollout.PublishWeightsResponse:
        accepted = await self._ask(inputs.PublishWeights(request.fence, weights(request.weights)), context)
        wanted = self._core.wanted  # what servers hold stays on the volume
        log.info("weights %s: %s", request.weights.policy_id, "served" if accepted else "not accepted")
        return rollout.PublishWeightsResponse(accepted=accepted, served_policy_id=wanted.policy_id if wanted else "")

    async def ProposeTombstone(
        self, request: rollout.ProposeTombstoneRequest, context: Context
    ) -> rollout.ProposeTombstoneResponse:
        call = inputs.ProposeTombstone(request.fence, request.group, request.reason, request.detail)
        return rollout.ProposeTombstoneResponse(accepted=await self._ask(call, context))

    async def SetHotFields(
        self, request: rollout.SetHotFieldsRequest, context: Context
    ) -> rollout.SetHotFieldsResponse:
        told: dict[str, Any] = {field.name.removesuffix("_rollouts"): value for field, value in request.ListFields()}
        await self._ask(inputs.SetHotFields(**told), context)
        settings = self._core.settings
        return rollout.SetHotFieldsResponse(
            max_steps=self._core.max_steps,
            max_staleness=settings.max_staleness,
            max_concurrent_rollouts=settings.max_concurrent,
            ahead=settings.lead,
        )

    async def GetRolloutStatus(
        self, request: rollout.GetRolloutStatusRequest, context: Context
    ) -> rollout.GetRolloutStatusResponse:
        answer = rollout_status(self._job, self._core, self._loop.evaluations.results)
        answer.ledger_silent_s = self._loop.ledger_silent_s
        if (unserved := self._core.services.unserved) is not None:
            answer.unserved, answer.unserved_role = unserved.text, unserved.role
            answer.unserved_s = self._core.attention - unserved.since
        return answer


def rollout_status(
    job: str, core: Controller, evaluations: Iterable[Mapping[str, Any]]
) -> rollout.GetRolloutStatusResponse:
    """Everything at once. `evaluations` are the finished ones, those before a restart included."""
    book, settings, tally, idle = core.book, core.settings, core.book.tally, idle_of(core)
    answer = rollout.GetRolloutStatusResponse(
        job=job,
        max_steps=core.max_steps,
        max_staleness=settings.max_staleness,
        max_concurrent_rollouts=settings.max_concurrent,
        ahead=settings.lead,
        trainer_step=core.desk.step,
        served_policy_id=core.fleet.served.policy_id if core.fleet.served else "",
        next_admission=book.next_admission,
        leased=core.last_round.in_work,
        complete_waiting=book.waiting_complete(),
        committed_group=book.order.low,
        tombstones=dict(book.order.tombstones.counts),
        reward_mean=tally.reward_mean,
        reward_sampled=tally.reward_sampled,
        tokens_total=core.crew.tokens_total,
        reserved_bytes=len(book.groups) * settings.bytes_per_group,
        budget_bytes=settings.budget_bytes,
        fleet=[server_state(s.report, live=s.live, ready=s.ready) for s in core.fleet.servers.values()],
        idle_reason=idle.text if idle else "",
        idle_cause=idle_to_wire(idle.cause) if idle else rollout.IDLE_CAUSE_UNSPECIFIED,
        batch_waits=batch_waits(core),
        stalled=core.stalled,
        stalled_by=kind_to_wire(core.stalled_by) if core.stalled else common.FAULT_KIND_UNSPECIFIED,
        finished=core.done,
        staleness_violations_total=tally.violations,
        staleness_mean=tally.age_mean,
        staleness_max=tally.age_max,
        episode_ends=dict(tally.ends),
        token_fates=tally.tokens.counts(),
    )
    held = Counter(core.book.groups[index].worker for index in core.book.open)
    for name, worker in sorted(core.crew.workers.items()):
        answer.workers.add(worker_id=name, health=worker.health.value, groups=held[name])
    names = ("policy_id", "mean", "oldest_version", "newest_version")
    for result in evaluations:
        rows = result["rows"] + result.get("failed_rows", 0)
        answer.evaluations.add(rows=rows, **{name: result[name] for name in names})
    for run in core.evaluations.runs:
        answer.evaluations.add(rows=run.rows, **fields_of(run, names))
    return answer


# ---- Between protobuf messages and the values of `reports`. Owns the mapping and nothing else


# Fields with the same name and form on both sides.
_SERVER = (
    "server_id", "address", "policy_id", "version", "draining", "running", "waiting", "tokens_total", "engine",
    "interruptions_total",
)  # fmt: skip
_WEIGHTS = ("policy_id", "path", "manifest_digest", "rollback", "content_digest")


def server_report(message: rollout.ServerMessage) -> ServerReport:
    """A generation agent's beat."""
    state = message.state
    refused = None
    if state.HasField("refused") and state.refused.policy_id:
        refused = RefusalReport(state.refused.policy_id, state.refused.tries, state.refused.reason)
    return ServerReport(
        incarnation=message.beat.incarnation,
        ready=state.ready,
        live=state.live,
        progress=message.beat.progress,
        refused=refused,
        phase=phase_from_wire(state.phase),
        **fields_of(state, _SERVER),
    )


def server_state(report: ServerReport, *, live: bool, ready: bool) -> generation.ServerState:
    """A server as workers and status see it; `live` and `ready` are the controller's own judgement."""
    told = None
    if (refused := report.refused) is not None:
        told = generation.Refusal(policy_id=refused.policy_id, tries=refused.tries, reason=refused.reason)
    return generation.ServerState(
        live=live, ready=ready, refused=told, phase=phase_to_wire(report.phase), **fields_of(report, _SERVER)
    )


def trainer_report(message: rollout.TrainerMessage) -> TrainerReport:
    """The trainer's beat."""
    return TrainerReport(
        fence=message.beat.fence,
        step=message.step,
        committed=message.committed_step,
        finished=message.finished,
        progress=message.beat.progress,
        turn=message.turn,
        wants_cards=message.wants_cards,
    )


def weights(ref: common.WeightsRef) -> PublishedWeights:
    """A published version. Raises DataError when its PolicyId is none."""
    policy = PolicyId.parse(ref.policy_id)
    return PublishedWeights(version=policy.version, fence=policy.fence, **fields_of(ref, _WEIGHTS))


def weights_ref(value: PublishedWeights) -> common.WeightsRef:
    """The wire form of published weights."""
    return common.WeightsRef(**fields_of(value, _WEIGHTS))
