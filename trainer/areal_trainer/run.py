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
from pathlib import Path

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
from areal.observe.progress import ProgressCounter
from areal.observe.waits import WaitRegistry
from areal.record.writer import RecordWriter
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.values.policy import PolicyId
from areal.weights.manifest import MANIFEST_NAME
from areal.weights.publish import WeightsRef

from areal_trainer import loop
from areal_trainer.actor import Actor
from areal_trainer.blame import exit_code
from areal_trainer.checkpoint.catalog import Began, Found, examine
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.context import TrainContext
from areal_trainer.control import AskedToStop, ControllerLink, TrainerControl
from areal_trainer.critic import Critic
from areal_trainer.engine.engine import Engine
from areal_trainer.engine.group import Message, Ranks
from areal_trainer.engine.meeting import Meeting
from areal_trainer.engine.self_check import check_packing
from areal_trainer.engine.value_engine import ValueEngine
from areal_trainer.feed import Feed
from areal_trainer.hooks import try_hooks
from areal_trainer.options import critic_options
from areal_trainer.publish.canary import prepare
from areal_trainer.publish.files import side_files
from areal_trainer.publish.publisher import Publisher
from areal_trainer.recording import StepRecorder
from areal_trainer.reporting import Reporter
from areal_trainer.rollout import PUBLISH_DEADLINE_S, FirstRank, Rollout
from areal_trainer.settings import Paths, TrainerSettings, overrides
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
    ranks = Ranks()
    user = overrides(settings.paths)
    engine = Engine(settings.paths.start_model, settings.engine, ranks)
    fence: int | None = None
    wanted, critic = critic_options(settings.spec), None
    if wanted is not None:
        critic = Critic(ValueEngine(settings.paths.start_model, settings.critic_engine, ranks), wanted)
    values = critic.engine if critic is not None else None
    checkpointer = Checkpointer(settings.paths.checkpoints, settings.spec.checkpoint.keep, engine, values)
    try_hooks(user.compute_advantages, user.compute_loss, engine.vocabulary)
    reference = Engine(settings.paths.start_model, settings.engine, ranks) if settings.needs_reference else None
    timer = PhaseTimer()
    waits = WaitRegistry("trainer")
    desk = _Desk(settings, ports, timer, waits) if ranks.first else None
    publisher = Publisher(
        settings.paths.weights,
        side_files(settings.paths.start_model, settings.paths.tokenizer),
        ranks.rank,
        Meeting(ranks, "writing a version", PUBLISH_DEADLINE_S),
        desk.announce if desk is not None else lambda reference, final: "",
        waits,
        # Of a float32 number some low bit always changes: nothing would be saved.
        full_every=settings.spec.weight_sync.full_every if settings.engine.precision == "bfloat16" else 1,
    )
    try:
        half = settings.spec.generation.engine.dtype == "bfloat16"
        probe = prepare(engine, settings.paths.tokenizer, served_in_bfloat16=half)  # before a checkpoint is loaded
        check_packing(engine, probe.token_ids, probe.spread)
        told = ranks.tell(desk.restore(checkpointer) if desk is not None else None).header
        if told["checkpoint"]:
            _load(checkpointer, Path(told["checkpoint"]))
        fence = int(told["fence"])
        first = desk.start(fence, stopping.is_set) if desk is not None else None
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
            compute_advantages=user.compute_advantages,
            compute_loss=user.compute_loss,
            reference=reference,
            critic=critic,
        )
        ctx = TrainContext(rollout, actor, settings.spec, ranks.rank, ranks.world_size)
        if rollout.due().publish:
            rollout.publish(actor)
        (user.train or loop.train)(ctx)
        return _finish(ctx, desk)
    except AskedToStop:
        return ExitCode.DRAINED  # nothing has begun: there is nothing to save
    except Exception as error:
        if fence is not None:
            _note_exit(settings.paths, Exit(fence, exit_code(error), type(error).__name__), f"rank-{ranks.rank}")
        raise
    finally:
        publisher.close()
        if desk is not None:
            desk.close()
        ranks.close()


def _load(checkpointer: Checkpointer, path: Path) -> None:
    problem, record = examine(path)
    if record is None:
        raise DataError(f"checkpoint {path.name}: {problem}", fix="start again: an older one will be used")
    checkpointer.load(Found(path, record))
    _log.info("goes on from %s", path.name)


def _finish(ctx: TrainContext, desk: _Desk | None) -> ExitCode:
    """The last version is published, everything is saved, the final evaluation is waited for."""
    rollout, actor = ctx.rollout, ctx.actor
    if desk is not None:
        desk.check_end(rollout.stopped)
    due = rollout.due(checkpoint_now=True)
    if due.publish and not rollout.stopped:
        rollout.publish(actor)
    if due.checkpoint:
        rollout.commit(actor.save(due.position))
    if rollout.stopped:
        return ExitCode.DRAINED
    rollout.settle()
    if desk is not None:
        desk.finish()
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

    def restore(self, checkpointer: Checkpointer) -> Message:
        """Which checkpoint to go on from, and this trainer's fence: what all ranks must know."""
        paths = self._settings.paths
        _note_signal(paths, int(os.environ.get("AREAL_LAST_EXIT", "0")))
        self._evidence = evidence_room.read(paths.evidence)
        found = checkpointer.newest([Began(start.fence, start.from_step) for start in self._evidence.starts])
        if found is not None:
            record = found.record
            self._state = TrainerState(record.step, record.next_group, record.tombstones_below)
            self._saved_at = found.path.stat().st_mtime
        self._fence = fences.allocate(paths.fences, "trainer")
        _log.info("trainer starts under fence %d at step %d", self._fence, self._state.step)
        return Message({"checkpoint": str(found.path) if found else None, "fence": self._fence}, {})

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
        reporter = Reporter(paths.metrics, paths.tensorboard, fence, self._metrics, self._progress)
        self._closing += [reporter.close, self._feed.close, link.close]
        self._progress.policy_id = str(PolicyId(state.step, fence))
        self._timer.doing = self._doing
        self._timer.spent = reporter.spent
        return FirstRank(self._feed, reporter, self._waits, stopping, self._recorder(fence))

    def _recorder(self, fence: int) -> StepRecorder | None:
        wanted = self._settings.spec.recording
        if wanted.share <= 0:
            return None
        keep = wanted.keep // 2  # the workers have the other half
        writer = RecordWriter(self._settings.paths.recording, "trainer", self._metrics, keep_bytes=keep)
        self._closing.append(writer.close)
        return StepRecorder(writer, fence, share=wanted.share, budget_bytes=wanted.budget_per_step // 2)

    def announce(self, reference: WeightsRef, final: bool) -> str:
        """Tell the controller about a version; answers the policy that is served then."""
        return self._feed.link.publish(reference.message(), final)

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
        copy_model(self._settings.paths.weights / policy.directory, self._settings.paths.model)
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
            await server.start(self._ports.grpc, settings.bind)
            return server

        server = self._server = self._thread.call(serve(), 10.0)
        self._closing.append(lambda: self._thread.call(server.stop(0.2), 5.0))
        return link

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
