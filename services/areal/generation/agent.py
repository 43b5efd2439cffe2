"""The agent: one engine, its weights, its requests, its place in the fleet, put together.

Owns the background tasks and the order of start and stop. What is decided where: `core` the rules, `swap` the
procedure, `requests` the truth of tokens, `engine_process` the engine's life.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.cards import CardLock, CardSide, ServerPhase
from areal.errors import DataError, InfraError
from areal.generation import engine_command
from areal.generation.aborts import Aborts
from areal.generation.core import AgentCore, WantedVersion
from areal.generation.dispatch import Dispatcher
from areal.generation.engine_client import KV_CACHE, WEIGHTS, Adapters, EngineClient, EngineMemory, EngineRefusal
from areal.generation.engine_command import AdapterRoom
from areal.generation.engine_process import EngineProcess, OwedToken
from areal.generation.group import GroupMember, Seat
from areal.generation.journal import SampleJournal
from areal.generation.limits import ModelLimits
from areal.generation.requests import Requests
from areal.generation.service import ControlService, GenerationService
from areal.generation.swap import Swapper
from areal.generation.volume import VolumeFilesService
from areal.method_access import MethodAccess
from areal.net.kept_stream import KeptStream
from areal.net.listening import join
from areal.net.operations import beat, wait_to_wire
from areal.net.server import GrpcServer
from areal.net.status import phase_to_wire
from areal.observe.metrics import RoleMetrics
from areal.observe.traces import NO_TRACES, Traces
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.record.writer import RecordWriter
from areal.spec.serving import EmbeddedEngineBlock, SglangEngine
from areal.v1 import generation_pb2 as wire
from areal.v1 import generation_pb2_grpc as rpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc
from areal.v1 import weights_pb2_grpc as files_rpc
from areal.values.policy import PolicyId
from areal.weights.mirror import VolumeMirror
from areal.weights.stage import StagingArea, own_directory

log = logging.getLogger(__name__)

START_VERSION = "start"  # the start model's weight version: of no policy, so nothing is sampled from it
DRAIN_S = 3.0
SLEEP_S = 20.0  # from an order to sleep until the engine's memory is free
CARDS_S = 120.0  # from the end of the trainer's turn until it has let go of the cards
CARDS_LOOK_S = 0.05
IDLE_LOOK_S = 5.0  # the swapper looks again by itself, whatever it was or wasn't told


@dataclass(frozen=True)
class AgentSettings:
    """What an agent is told. `server_id` names it in the fleet."""

    server_id: str
    job: str
    run: str  # names the run on this machine: its directory
    token: str  # with which it calls others
    access: MethodAccess | str  # who may call it
    incarnation: str
    controller: str
    model_path: Path
    tokenizer_path: Path
    engine: EmbeddedEngineBlock | SglangEngine
    engine_port: int
    stream_interval: int = 16
    routes: bool = False  # the experts of each token are wanted
    fp32_head: bool = False  # logits aren't rounded to the precision of the weights
    adapters: AdapterRoom | None = None  # versions are LoRA adapters of the start model
    port: int = 0
    host: str = "127.0.0.1"  # to listen on
    advertise: str = "127.0.0.1"  # under which workers reach it
    cards: Path | None = None  # where the lock of cards lies that the trainer has, too
    weight_group: str | None = None  # the trainer's address, which may send versions by a process group
    journal: Path | None = None  # where to journal what is sampled; None: nowhere
    journal_bytes: int = 1 << 30  # at most, of all its processes together
    mirror: VolumeMirror | None = None  # copies of versions, where the run's volume isn't mounted
    volume: Path | None = None  # of versions, where the trainer hands them over in memory
    traces: Traces = NO_TRACES


class GenerationAgent:
    """One generation server. `start`, then `run` until its `stop` is set; `run` cleans up."""

    def __init__(self, settings: AgentSettings, progress: ProgressCounter | None = None) -> None:
        self.settings = settings
        self._cards = None if settings.cards is None else CardLock(settings.cards, CardSide.SERVING)
        self.core = AgentCore(shared=self._cards is not None)
        self.waits = WaitRegistry(settings.server_id)
        self.progress = progress or ProgressCounter()
        self.metrics = RoleMetrics("generation", settings.job)
        self.limits = ModelLimits.from_dir(settings.model_path)
        self._api_key = secrets.token_hex(24)
        embedded = isinstance(settings.engine, EmbeddedEngineBlock)
        routes = self.limits.routes if settings.routes and not embedded else None
        self.engine = EngineClient(settings.engine_port, self._api_key, embedded=embedded, routes=routes)
        self._owed = OwedToken()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._aborts = Aborts(self.engine)
        self._journal: SampleJournal | None = None
        if settings.journal is not None:
            writer = RecordWriter(settings.journal, settings.server_id, self.metrics, keep_bytes=settings.journal_bytes)
            self._journal = SampleJournal(writer, settings.server_id)
        room = None if embedded else settings.adapters  # the embedded engine swaps them as any weights
        beside = room is not None
        self.requests = Requests(
            self.core,
            settings.server_id,
            self.progress,
            self._aborts,
            self._journal,
            adapters=beside,
            routes_at_end=routes is not None,
        )
        self._adapters = None if room is None else Adapters(self.engine, room.slots, self.requests.leave_policy)
        self.dispatcher = Dispatcher(
            self.core,
            self.engine,
            self.requests,
            self._lock,
            max_running=settings.engine.running_requests,
            adapters=beside,
        )
        own = own_directory(settings.run, settings.server_id)
        self._stage = StagingArea(own, settings.mirror, settings.volume)
        self._memory = EngineMemory(self.engine, [KV_CACHE] if beside else [KV_CACHE, WEIGHTS])
        self._group = None if settings.weight_group is None else self._member(settings.weight_group)
        self._swapper = Swapper(
            self.core,
            self.engine,
            self.requests,
            self.metrics,
            self.waits,
            self._lock,
            self._stage,
            self._adapters,
            self._group,
            memory=self._memory,
            traces=settings.traces,
        )
        self._look = asyncio.Event()
        self._holds: WantedVersion | None = None  # what the engine's command line named
        self._failed: WantedVersion | None = None  # what the engine died of before it was up
        self._counted = (0, 0)
        self.process = EngineProcess(
            self.engine,
            self._command,
            on_up=self._engine_up,
            on_down=self._engine_down,
            stalled_s=self._stalled_s,
            waits=self.waits,
            cards=self._cards,
        )
        self._server = GrpcServer("generation", settings.access, waits=self.waits, progress=self.progress)
        self.address = ""
        self._link = controller_stream(
            settings.controller,
            settings.token,
            name=settings.server_id,
            incarnation=settings.incarnation,
            state=self.state,
            on_orders=self._orders,
            progress=self.progress,
            waits=self.waits,
        )

    async def start(self) -> int:
        """Serve gRPC; returns the port. The engine is started by `run`."""
        service = GenerationService(self.requests, self.dispatcher, self.limits)
        self._server.add(rpc.add_GenerationServicer_to_server, service, "areal.v1.Generation")
        control = ControlService(self.state, self.drain)
        self._server.add(rpc.add_GenerationControlServicer_to_server, control, "areal.v1.GenerationControl")
        if (mirror := self.settings.mirror) is not None:
            files = VolumeFilesService({}, mirror.root, self.metrics)
            self._server.add(files_rpc.add_VolumeFilesServicer_to_server, files, "areal.v1.VolumeFiles")
        port = await self._server.start(self.settings.port, self.settings.host)
        self.address = join(self.settings.advertise, port)
        if mirror is not None:
            mirror.address = self.address
        return port

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`. Raises InfraError when the engine can't be kept alive."""
        if self._cards is not None:
            await self._changed()
        tasks = [
            self._task(self.process.run()),
            self._task(self._take_weights()),
            self._task(self._link.run()),
            self._task(self._report()),
        ]
        if self._group is not None:
            tasks.append(self._task(self._group.run()))
        stopping = self._task(stop.wait())
        try:
            await asyncio.wait((*tasks, stopping), return_when=asyncio.FIRST_COMPLETED)
            failed = next((task for task in tasks if task.done()), None)
            if failed is not None and (error := failed.exception()) is not None:
                raise error
            self.progress.doing = "draining"
            await self.drain(DRAIN_S)
            self._link.wake()
            await asyncio.sleep(0.05)  # the last state leaves before the stream does
        finally:
            await self._server.stop(1.0)
            await self.process.stop()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.dispatcher.close()
            await self._aborts.close()
            await self.engine.close()
            if self._cards is not None:
                self._cards.close()
            if self._journal is not None:
                await asyncio.to_thread(self._journal.close)
            await asyncio.to_thread(self._stage.close)

    async def drain(self, grace_s: float) -> int:
        """Take no new requests and end the running ones with what was made."""
        self.core.draining = True
        self._link.wake()
        return await self.requests.drain(grace_s)

    def state(self) -> wire.ServerState:
        """State of this server as others are told."""
        core, requests = self.core, self.requests
        running = min(self.dispatcher.at_engine, self.settings.engine.running_requests)
        state = wire.ServerState(
            server_id=self.settings.server_id,
            address=self.address,
            policy_id=str(core.held) if core.version >= 0 else "",
            version=core.version,
            live=core.engine_up,
            ready=core.ready,
            draining=core.draining,
            running=running,
            waiting=max(0, len(requests) - running),
            tokens_total=requests.settled_total,
            engine=self.settings.engine.type,
            interruptions_total=requests.interruptions_total,
            phase=phase_to_wire(core.phase),
        )
        if core.refused is not None:
            state.refused.CopyFrom(
                wire.Refusal(policy_id=str(core.refused.policy), tries=core.refused.tries, reason=core.refused.reason)
            )
        return state

    # ---- weights

    def _orders(self, orders: rollout.ServerOrders) -> None:
        if orders.HasField("wanted") and orders.wanted.policy_id:
            try:
                policy = PolicyId.parse(orders.wanted.policy_id)
            except DataError as error:
                log.error("the controller wants what is no policy: %s", error.message)
                return
            path = Path(orders.wanted.path)
            if self.settings.mirror is not None:
                path = self.settings.mirror.place(path)
            wanted = WantedVersion(policy, path, orders.wanted.manifest_digest, orders.wanted.rollback)
            if wanted != self.core.wanted:
                self.core.want(wanted)
                self._look.set()
        if self._cards is not None and self.core.order(orders.turn, sleep=orders.sleep):
            self._look.set()
        if orders.drain and not self.core.draining:
            self._task(self.drain(DRAIN_S))

    async def _take_weights(self) -> None:
        """Hold what is wanted: now, and again when a refused version's time has come."""
        while True:
            self._look.clear()
            if (phase := self.core.switch()) is not None:
                await (self._sleep() if phase is ServerPhase.ASLEEP else self._wake())
                await self._changed()
                continue
            wanted = self.core.due(time.monotonic())
            if wanted is not None:
                await self._swapper.take(wanted)
                await self._changed()
                continue
            delay = self.core.next_look_s(time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_LOOK_S if not delay else min(delay, IDLE_LOOK_S)):
                    await self._look.wait()

    async def _sleep(self) -> None:
        """Give the cards to the trainer. An engine that can't give its memory back is ended: that does it, too."""
        began = time.monotonic()
        end = not self.core.engine_up  # it is starting, or gone
        if not end:
            try:
                async with asyncio.timeout(SLEEP_S):
                    await self._swapper.sleep()
            except (EngineRefusal, InfraError, TimeoutError) as error:
                log.warning("the engine is ended, it does not give its memory back: %s", error)
                end = True
        await self.process.forbid(end=end)
        self.core.phase = ServerPhase.ASLEEP
        self._release_cards()
        self._switched(ServerPhase.ASLEEP, began)

    def _switched(self, phase: ServerPhase, began: float) -> None:
        took = time.monotonic() - began
        self.metrics.histogram("areal_generation_switch_seconds", to=phase.value).observe(took)
        log.info("%s after %.3f s", phase.value, took)

    async def _wake(self) -> None:
        """Take the cards, as soon as the trainer has let go of them."""
        self.core.phase = ServerPhase.WAKING
        await self._changed()
        if not await self._take_cards():
            self.core.phase = ServerPhase.ASLEEP
            return
        began = time.monotonic()
        if self.core.engine_up:
            try:
                await self._swapper.wake()
            except (EngineRefusal, InfraError) as error:
                log.warning("the engine is started anew, it does not wake: %s", error.message)
                await self.process.forbid(end=True)
        self.core.phase = ServerPhase.AWAKE
        self.process.allow()
        self._switched(ServerPhase.AWAKE, began)

    async def _take_cards(self) -> bool:
        """Whether the cards were taken before the turn was over again."""
        assert self._cards is not None
        with self.waits.waiting("cards", "the trainer to let go of the cards", deadline_s=CARDS_S):
            while not self._cards.try_take():
                await asyncio.sleep(CARDS_LOOK_S)
                if self.core.sleeps:
                    return False
        return True

    def _release_cards(self) -> None:
        if self._cards is not None:
            self._cards.release()

    async def _changed(self) -> None:
        """Tells everybody: what this server holds, or whether it is ready, may have changed."""
        core = self.core
        self.progress.policy_id = str(core.held) if core.ready else ""
        idle = "not ready" if core.phase is ServerPhase.AWAKE else core.phase.value
        self.progress.doing = f"serving {core.held}" if core.ready else idle
        self.metrics.gauge("areal_generation_policy_version").set(core.version)
        self.dispatcher.wake()
        self._link.wake()
        await self._server.set_ready(core.ready or core.phase is not ServerPhase.AWAKE)

    def _member(self, trainer: str) -> GroupMember:
        settings, engine = self.settings, self.settings.engine
        ranks = engine.tensor_parallel if isinstance(engine, SglangEngine) else 1
        return GroupMember(
            Seat(trainer, settings.token, settings.server_id, ranks),
            self.engine,
            lambda: self.core.engine_up and not self.core.draining,
            lambda: self.process.kill(),
            stages=isinstance(engine, EmbeddedEngineBlock),
        )

    # ---- the engine

    def _command(self) -> engine_command.Launch:
        """Start from the newest accepted version; from the start model when that one is gone or failed to start."""
        settings, accepted = self.settings, self.core.accepted
        held_at = (
            None
            if accepted is None or accepted == self._failed
            else self._stage.loadable(accepted.path, accepted.digest)
        )
        self._holds = accepted if held_at is not None else None
        return engine_command.launch(
            settings.engine,
            engine_command.EngineStart(
                model_path=held_at or settings.model_path,
                tokenizer_path=settings.tokenizer_path,
                weight_version=START_VERSION if self._holds is None else str(self._holds.policy),
                port=settings.engine_port,
                stream_interval=settings.stream_interval,
                fp32_head=settings.fp32_head,
                api_key=self._api_key,
                routes=self.engine.routes is not None,
                shared=self._cards is not None,
                adapters=settings.adapters,
            ),
        )

    async def _engine_up(self) -> None:
        self.core.engine_started(self._holds)
        if self._group is not None:
            self._group.engine_changed()
        if self._holds is not None:
            await self._swapper.prove(self._holds)
        self._look.set()
        await self._changed()

    def _engine_down(self, reason: str) -> None:
        log.error("the engine is gone: %s", reason)
        if not self.core.engine_up:
            self._failed = self._holds  # it may have been collected while the engine started
        self.core.engine_lost()
        if self._group is not None:
            self._group.engine_changed()
        self._aborts.forget()
        self._memory.forget()
        if self._adapters is not None:
            self._adapters.forget()
        self.requests.lose_all()
        self._task(self._changed())

    def _stalled_s(self) -> float:
        """For how long the engine has owed a token."""
        owes = self.dispatcher.at_engine and self.core.ready and not self._lock.locked()
        return self._owed.seconds(owes=bool(owes), quiet_s=self.progress.since_s(), now=time.monotonic())

    # ---- tasks

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _report(self) -> None:
        """Keep the metrics up to date."""
        while True:
            tokens, interruptions = self._counted
            self.metrics.counter("areal_generation_output_tokens_total").inc(self.requests.tokens_total - tokens)
            self.metrics.counter("areal_generation_interruptions_total").inc(
                self.requests.interruptions_total - interruptions
            )
            self._counted = (self.requests.tokens_total, self.requests.interruptions_total)
            self.metrics.gauge("areal_generation_running").set(len(self.requests))
            for name, value in (await self.engine.loads()).items():
                self.metrics.gauge("areal_generation_engine", figure=name).set(value)
            await asyncio.sleep(1.0)


def controller_stream(
    address: str,
    token: str,
    *,
    name: str,
    incarnation: str,
    state: Callable[[], wire.ServerState],
    on_orders: Callable[[rollout.ServerOrders], None],
    progress: ProgressCounter,
    waits: WaitRegistry,
) -> KeptStream[rollout.ServerMessage, rollout.ServerOrders]:
    """The stream of server `name`; `state` is read for each message."""

    def report() -> rollout.ServerMessage:
        return rollout.ServerMessage(
            beat=beat(name, incarnation, progress.value), state=state(), waiting=map(wait_to_wire, waits.list())
        )

    return KeptStream(
        address,
        token,
        method=lambda channel: rollout_pb2_grpc.RolloutStub(channel).Serve,
        hello=lambda: [report()],
        report=report,
        on_message=on_orders,
        waits=waits,
        what="controller",
    )
