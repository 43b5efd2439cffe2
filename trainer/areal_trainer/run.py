"""One trainer from start to end: restore, attach, train, finish.

Owns the order of a start, which every promise about restarts hangs on: the checkpoint decides where the run is, then a
fence is taken, the ledger and the controller agree to that position, evidence of the start is on disk, and only then a
version is published or a batch is taken.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from areal.dataflow.builtin import graph_of
from areal.dataflow.own import own_graph
from areal.errors import DataError, ExitCode, FencedError, InfraError
from areal.ledger import evidence as evidence_room
from areal.ledger import fences
from areal.ledger.consumer import Consumer, TrainerState
from areal.ledger.evidence import EvidenceLog, Exit
from areal.ledger.poison import precaution
from areal.ledger.sync_client import SyncLedger
from areal.ledger.values import Reason
from areal.net.server import GrpcServer
from areal.net.thread import LoopThread
from areal.observe.metrics import RoleMetrics
from areal.observe.otlp import open_traces
from areal.observe.progress import ProgressCounter
from areal.observe.stacks import StallWatch
from areal.observe.user_code import told
from areal.observe.waits import WaitRegistry
from areal.record.writer import RecordWriter
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import weights_pb2_grpc as weights_grpc
from areal.values.policy import PolicyId
from areal.weights.adapter import ADAPTER_CONFIG
from areal.weights.manifest import MANIFEST_NAME
from areal.weights.publish import WeightsRef
from areal.workflow.tokenizer import Tokenizer

from areal_trainer import loop
from areal_trainer.actor import Actor
from areal_trainer.batch_journal import BatchJournal
from areal_trainer.blame import exit_code
from areal_trainer.checkpoint.catalog import Began, Found
from areal_trainer.checkpoint.checkpointer import CRITIC, Checkpointer, CheckpointPart
from areal_trainer.context import TrainContext
from areal_trainer.control import AskedToStop, ControllerLink, TrainerControl
from areal_trainer.critic import Critic
from areal_trainer.engine.engine import Engine
from areal_trainer.engine.group import Ranks, first_works
from areal_trainer.engine.meeting import LOAD_DEADLINE_S, Meeting
from areal_trainer.engine.message import Message
from areal_trainer.engine.self_check import check_packing
from areal_trainer.engine.value_engine import ValueEngine
from areal_trainer.feed import Feed
from areal_trainer.frozen import REFERENCE, TEACHER, FrozenModels
from areal_trainer.hooks import HookFacts, try_hooks
from areal_trainer.options import critic_options, objective_options
from areal_trainer.publish.canary import prepare
from areal_trainer.publish.exporter import Exporter
from areal_trainer.publish.files import side_files
from areal_trainer.publish.group import GroupOptions, GroupSender
from areal_trainer.publish.members import Members
from areal_trainer.publish.merge import merge
from areal_trainer.publish.publisher import Publisher
from areal_trainer.recording import Piece, StepRecorder
from areal_trainer.reporting import Reporter
from areal_trainer.rollout import PUBLISH_DEADLINE_S, FirstRank, Rollout
from areal_trainer.settings import Paths, TrainerSettings, overrides
from areal_trainer.spans import StepSpans
from areal_trainer.stage_models import StageModels
from areal_trainer.timer import PhaseTimer

_log = logging.getLogger(__name__)

_SLICE_S = 2.0  # of the wait for Redis


@dataclass(frozen=True)
class Ports:
    """Where this trainer serves; 0 picks free ones."""

    grpc: int = 0
    metrics: int = 0


def run(settings: TrainerSettings, ports: Ports, stopping: threading.Event) -> ExitCode:
    """Train until the last step, or until `stopping` is set. Every rank calls this."""
    mesh = settings.spec.trainer.mesh
    ranks = Ranks(mesh.replicate, mesh.tensor, mesh.context)
    waits = WaitRegistry("trainer")
    user = overrides(settings.paths)
    loaded = Meeting(ranks, "loading the model", LOAD_DEADLINE_S)
    engine = Engine(settings.paths.start_model, settings.engine, ranks)
    fence: int | None = None
    wanted, critic = critic_options(settings.spec), None
    if wanted is not None:
        critic = Critic(ValueEngine(settings.paths.start_model, settings.critic_engine, ranks), wanted)
    beside: dict[str, CheckpointPart] = {} if critic is None else {CRITIC: critic.engine}
    own = None
    if user.graph is not None:
        own = own_graph(user.graph, settings.spec, user.hooks)
    try_hooks(
        user.compute_advantages,
        user.compute_loss,
        engine.vocabulary,
        HookFacts(
            critic=critic is not None,
            reference=objective_options(settings.spec).policy.kl is not None,
            own=own,
            usual=graph_of(settings.spec),
        ),
    )
    frozen = FrozenModels(settings, engine, ranks, waits, own)
    models = StageModels(
        engine, settings.paths.start_model, settings.actor.micro_batch_tokens, settings.actor.pack_length
    )
    models.start(own)
    beside |= models.parts
    loaded.all_here(waits)
    timer = PhaseTimer()
    checkpointer = Checkpointer(settings.paths.checkpoints, settings.spec.checkpoint.keep, engine, beside, waits=waits)
    desk = _Desk(settings, ports, timer, waits) if ranks.first else None
    exporter = _exporter(settings)
    publisher = Publisher(
        settings.paths.weights,
        _published_files(settings),
        ranks.rank,
        Meeting(ranks, "writing a version", PUBLISH_DEADLINE_S),
        desk.announce if desk is not None else lambda reference, final: "",
        waits,
        full_every=settings.spec.weight_sync.full_every if settings.deltas else 1,
        base=settings.paths.start_model if settings.adapter is not None else None,
        exporter=exporter if ranks.first else None,
        group=desk.group if desk is not None else None,
    )
    try:
        half = settings.spec.generation.engine.dtype == "bfloat16"
        probe = prepare(engine, settings.paths.tokenizer, served_in_bfloat16=half)  # before a checkpoint is loaded
        check_packing(engine, probe.token_ids, probe.spread)
        found = checkpointer.newest(desk.history() if desk is not None else [])
        fence = int(ranks.tell(desk.restore(found) if desk is not None else None).header["fence"])
        if found is not None:
            checkpointer.load(found)
        frozen.ready()
        first = first_works(ranks, partial(desk.start, fence, stopping.is_set) if desk is not None else None)
        rollout = Rollout(
            ranks,
            fence,
            engine.vocabulary,
            first=first,
            publisher=publisher,
            timer=timer,
            probe=probe,
        )
        actor = Actor(
            engine,
            settings.actor,
            checkpointer,
            timer=timer,
            still_mine=desk.still_mine if desk is not None else lambda: None,
            compute_advantages=told(user.compute_advantages, waits) if user.compute_advantages else None,
            compute_loss=told(user.compute_loss, waits) if user.compute_loss else None,
            reference=frozen.get(REFERENCE),
            teacher=frozen.get(TEACHER),
            critic=critic,
            own_graph=own,
        )
        ctx = TrainContext(rollout, actor, settings.spec, ranks.rank, ranks.world_size)
        if rollout.due().publish:
            rollout.publish(actor)
        (user.train or loop.train)(ctx)
        ended = _finish(ctx, ranks, desk)
        if exporter is not None and ranks.first:
            exporter.tidy()
        return ended
    except AskedToStop:
        return ExitCode.DRAINED  # nothing has begun: there is nothing to save
    except Exception as error:
        if fence is not None:
            _note_exit(settings.paths, Exit(fence, exit_code(error), type(error).__name__), f"rank-{ranks.rank}")
        raise
    finally:
        frozen.close()
        publisher.close()
        checkpointer.close()
        if desk is not None:
            desk.close()
        ranks.close()


def _published_files(settings: TrainerSettings) -> dict[str, bytes | Path]:
    """What goes beside the tensors of a version."""
    if settings.adapter is not None:
        return {ADAPTER_CONFIG: settings.adapter.to_bytes(str(settings.paths.start_model))}
    return {**side_files(settings.paths.start_model, settings.paths.tokenizer)}


def _exporter(settings: TrainerSettings) -> Exporter | None:
    """What makes models of published versions, where the job asks for them."""
    paths = settings.paths
    if (exports := paths.exports_of(settings.spec)) is None:
        return None
    adapter = settings.adapter is not None
    return Exporter(exports, paths.weights, (paths.start_model, paths.tokenizer) if adapter else None)


def _finish(ctx: TrainContext, ranks: Ranks, desk: _Desk | None) -> ExitCode:
    """The last version is published, everything is saved, the final evaluation is waited for."""
    rollout, actor = ctx.rollout, ctx.actor
    if desk is not None:
        desk.check_end(rollout.stopped)
    rollout.saved()  # it may be of this very step
    due = rollout.due(checkpoint_now=True)
    if due.publish and not rollout.stopped:
        rollout.publish(actor)
    if due.checkpoint:
        rollout.commit(actor.save(due.position))
        rollout.saved()
    if rollout.stopped:
        return ExitCode.DRAINED
    rollout.settle()
    first_works(ranks, desk.finish if desk is not None else None)
    rollout.evaluate()
    return ExitCode.DONE


class _Desk:
    """Rank 0's connections and files."""

    def __init__(self, settings: TrainerSettings, ports: Ports, timer: PhaseTimer, waits: WaitRegistry) -> None:
        self._settings = settings
        self._ports = ports
        self._timer = timer
        self._waits = waits
        self._progress = ProgressCounter()
        self._metrics = RoleMetrics("trainer", settings.name)
        self._thread = LoopThread()
        self._state = TrainerState()
        self._saved_at = 0.0  # when the checkpoint that this trainer goes on from was written, unix seconds
        self._closing: list[Callable[[], None]] = [self._thread.stop]
        self._members = Members(self._thread.loop)
        self.group = self._sender()
        wanted, uid = settings.spec.observability.traces, settings.uid
        asked = (wanted.endpoint, wanted.sample_rate) if wanted is not None else (None, None)
        self._traces = open_traces(uid, "trainer", settings.name, *asked)
        self._spans = StepSpans(self._traces)
        self._closing.append(self._traces.close)

    def history(self) -> list[Began]:
        """Where the trainers before began, as the evidence says."""
        paths = self._settings.paths
        _note_signal(paths, int(os.environ.get("AREAL_LAST_EXIT", "0")))
        self._evidence = evidence_room.read(paths.evidence)
        return [Began(start.fence, start.from_step) for start in self._evidence.starts]

    def restore(self, found: Found | None) -> Message:
        """Go on from a checkpoint, or from the start; answers this trainer's fence, which all ranks must know."""
        if found is not None:
            record = found.record
            self._state = TrainerState(record.step, record.next_group, record.tombstones_below)
            self._saved_at = found.path.stat().st_mtime
        self._fence = fences.allocate(self._settings.paths.fences, "trainer")
        _log.info("trainer starts under fence %d at step %d", self._fence, self._state.step)
        return Message({"fence": self._fence}, {})

    def start(self, fence: int, stopping: Callable[[], bool]) -> FirstRank:
        """Agree with ledger and controller on the position, leave evidence, and open the doors."""
        settings, state = self._settings, self._state
        paths, algorithm = settings.paths, settings.spec.algorithm
        ledger = SyncLedger(
            settings.redis,
            settings.uid,
            username=settings.redis_user,
            password=settings.redis_password,
            retry_for_s=settings.outage_s,
        )
        link = self._connect(fence)
        patience_s = max(settings.outage_s, settings.patience_s)
        with self._waits.waiting("ledger", "the replay store", deadline_s=patience_s):
            _reach(ledger, patience_s, stopping)
            ledger.recover(fence, state.next_group)
        served = link.attach(state.next_group, state.step, patience_s=patience_s, stopping=stopping)
        careful = precaution(self._evidence, state.step)
        if careful.tombstone is not None:
            detail = f"step {careful.step} crashed {careful.crashes} times with it"
            accepted = link.propose_tombstone(careful.tombstone, Reason.POISON.value, detail)
            _log.error("group %d was proposed as poison: accepted=%s", careful.tombstone, accepted)
        log = EvidenceLog(paths.evidence, fence)
        log.start(state.step, algorithm.batch_size, algorithm.group_size)
        consumer = Consumer(fence, state, settings.consumer, PolicyId.parse(served).version if served else -1)
        if link.orders.max_steps is not None:
            consumer.set_max_steps(link.orders.max_steps)
        telling = link.telling
        telling.step, telling.next_group = state.step, state.next_group
        telling.committed_group, telling.max_steps = state.next_group, consumer.policy.max_steps
        telling.checkpoint_step, telling.checkpoint_at = state.step, self._saved_at
        link.start_beats()
        self._closing.append(StallWatch(self._progress).on_thread())
        self._thread.call(self._server.set_ready(True), 5.0)
        self._feed = Feed(
            ledger,
            link,
            consumer,
            log,
            waits=self._waits,
            timer=self._timer,
            precaution=careful,
            groups_deadline_s=2 * settings.spec.rollout.group_deadline_seconds + 600.0,
            outage_s=settings.outage_s,
        )
        traces = self._traces
        reporter = Reporter(paths.metrics, paths.tensorboard, fence, self._metrics, self._progress, traces)
        self._closing += [reporter.close, self._feed.close, link.close]
        self._progress.policy_id = str(PolicyId(state.step, fence))
        self._timer.doing = self._doing
        self._timer.spent = self._spans.beside(reporter.spent)
        recorder, batches = self._recorder(fence), self._batches(fence)
        return FirstRank(self._feed, reporter, self._waits, stopping, recorder, batches, self._spans)

    def _recorder(self, fence: int) -> StepRecorder | None:
        wanted = self._settings.spec.recording
        if wanted.share <= 0:
            return None
        keep = wanted.keep // 2  # the workers have the other half
        writer = RecordWriter(self._settings.paths.recording, "trainer", self._metrics, keep_bytes=keep)
        self._closing.append(writer.close)

        def pieces() -> Piece:
            paths = self._settings.paths
            return Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model).piece

        half = wanted.budget_per_step // 2  # the workers have the other half
        return StepRecorder(
            writer,
            fence,
            share=wanted.share,
            budget_bytes=half,
            worker_budget_bytes=half // self._settings.spec.rollout.workers,
            pieces=pieces,
        )

    def _batches(self, fence: int) -> BatchJournal | None:
        settings, wanted = self._settings, self._settings.spec.recording
        if not wanted.token_audit:
            return None
        keep = wanted.keep // 2  # the servers have the other half
        writer = RecordWriter(settings.paths.tokens, "trainer", self._metrics, keep_bytes=keep)
        journal = BatchJournal(writer, fence, settings.spec.rollout.sampling.temperature)
        self._closing.append(journal.close)
        return journal

    def announce(self, reference: WeightsRef, final: bool) -> str:
        """Tell the controller about a version; answers the policy that is served then."""
        served = self._feed.link.publish(reference.message(), final)
        self._spans.published(str(reference.policy_id))
        return served

    def still_mine(self) -> None:
        """Raise FencedError when a newer trainer has begun."""
        self._feed.link.check()
        newest = fences.newest(self._settings.paths.fences, "trainer")
        if newest != self._fence:
            raise FencedError(f"trainer fence {self._fence} is over: {newest} has begun")

    def check_end(self, stopped: bool) -> None:
        """A recipe's loop must go to the end."""
        consumer = self._feed.consumer
        if not stopped and not consumer.finished:
            raise DataError(
                f"train(ctx) returned at step {consumer.version} of {consumer.policy.max_steps}",
                fix="loop until ctx.rollout.prepare_batch() returns None",
            )

    def finish(self) -> None:
        """The final model is on disk; the controller is told. Nothing is being published any more."""
        policy = PolicyId(self._feed.consumer.version, self._fence)
        paths = self._settings.paths
        version = paths.weights / policy.directory
        with self._waits.waiting("model", "the final model to be copied out of its version"):
            if self._settings.adapter is not None:
                merge(paths.start_model, paths.tokenizer, version, paths.model)
            else:
                copy_model(version, paths.model)
        self._feed.finished()

    def close(self) -> None:
        """Give back everything that was opened, newest first."""
        for close in reversed(self._closing):
            try:
                close()
            except (OSError, TimeoutError) as error:
                _log.warning("closing: %s", error)

    def _connect(self, fence: int) -> ControllerLink:
        settings = self._settings
        link = ControllerLink(
            settings.controller,
            settings.token,
            fence,
            thread=self._thread,
            waits=self._waits,
            progress=self._progress,
            incarnation=f"{os.getpid()}-{uuid.uuid4().hex[:8]}",
            outage_s=settings.outage_s,
        )
        self._metrics.serve(self._ports.metrics, settings.bind)

        async def serve() -> GrpcServer:
            server = GrpcServer("trainer", settings.token, waits=self._waits, progress=self._progress)
            server.add(
                operations_grpc.add_TrainerControlServicer_to_server,
                TrainerControl(link.telling, self._progress),
                "areal.v1.TrainerControl",
            )
            if self.group is not None:
                server.add(weights_grpc.add_WeightGroupServicer_to_server, self._members, "areal.v1.WeightGroup")
            await server.start(self._ports.grpc, settings.bind)
            return server

        server = self._server = self._thread.call(serve(), 10.0)
        self._closing.append(lambda: self._thread.call(server.stop(0.2), 5.0))
        return link

    def _sender(self) -> GroupSender | None:
        """What sends versions to servers, where the job wants that."""
        settings = self._settings
        if settings.advertise is None:
            return None
        gpus = settings.spec.trainer.gpus and settings.spec.generation.engine.type == "sglang"
        options = GroupOptions(
            address=settings.advertise.rpartition(":")[0].strip("[]"),
            backend="nccl" if gpus else "gloo",
            bucket_bytes=settings.spec.weight_sync.bucket_bytes,
        )
        return GroupSender(self._members, options, self._waits, self._sent)

    def _sent(self, phase: str, seconds: float) -> None:
        """A phase of a version's way through the process group has ended."""
        if phase.startswith("fault"):
            self._metrics.counter("areal_weight_sync_failures_total", reason="group").inc()
        else:
            self._metrics.histogram("areal_weight_sync_duration_seconds", mode="group", stage=phase).observe(seconds)

    def _doing(self, phase: str) -> None:
        self._progress.doing = phase
        self._feed.link.telling.phase = phase


def _note_signal(paths: Paths, code: int) -> None:
    """A signal that ended the trainer before is known to its launcher only: `code`, below 0."""
    newest = fences.newest(paths.fences, "trainer")
    if code < 0 and newest:
        _note_exit(paths, Exit(newest, code), "launcher")


def _note_exit(paths: Paths, ended: Exit, seen_by: str) -> None:
    """What ended the trainer matters more than the note of it."""
    try:
        evidence_room.exited(paths.evidence, ended, seen_by)
    except InfraError as error:
        _log.warning("the exit of fence %d is not in the evidence: %s", ended.fence, error.message)


def _reach(ledger: SyncLedger, patience_s: float, stopping: Callable[[], bool]) -> None:
    """Wait until the store answers, in slices, so that SIGTERM is heard."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            ledger.reach(_SLICE_S)
            return
        except InfraError:
            if stopping():
                raise AskedToStop from None
            if time.monotonic() > deadline:
                raise


def copy_model(version: Path, target: Path) -> None:
    """The final version as a plain Hugging Face directory, whole or not at all."""
    partial = target.with_name(target.name + ".tmp")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(version, partial, ignore=shutil.ignore_patterns(MANIFEST_NAME))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
