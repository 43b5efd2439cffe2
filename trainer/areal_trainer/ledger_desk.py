"""Rank 0's desk of a run that takes its batches from the ledger: store, controller, servers of weights."""

import logging
import os
import time
import uuid
from collections.abc import Callable

from areal.errors import DataError, InfraError
from areal.ledger.consumer import Consumer, TrainerState
from areal.ledger.evidence import EvidenceLog, precaution
from areal.ledger.sync_client import SyncLedger
from areal.ledger.values import TombstoneReason
from areal.observe.otlp import open_traces
from areal.observe.waits import StallWatch, WaitRegistry
from areal.record.writer import RecordWriter
from areal.v1 import weights_pb2_grpc as weights_grpc
from areal.values.policy import PolicyId
from areal.weights.publish import WeightsRef
from areal.workflow.tokenizer import Tokenizer

from areal_trainer.batch_journal import BatchJournal
from areal_trainer.cards import TrainerTurn
from areal_trainer.checkpoint.catalog import FoundCheckpoint
from areal_trainer.control import AskedToStop, ControllerLink
from areal_trainer.desk import Desk, TrainerPorts, copy_model
from areal_trainer.engine.group import RankMessage
from areal_trainer.feed import Feed
from areal_trainer.first_rank import FirstRank
from areal_trainer.publish.exporter import Exporter, merge
from areal_trainer.publish.group import GroupOptions, GroupSender
from areal_trainer.publish.sender import Members
from areal_trainer.recording import Piece, StepRecorder
from areal_trainer.reporting import Reporter
from areal_trainer.settings import TrainerSettings
from areal_trainer.spans import PhaseTimer, StepSpans

log = logging.getLogger(__name__)

_SLICE_S = 2.0  # of the wait for Redis


class LedgerDesk(Desk):
    """Rank 0's connections and files."""

    def __init__(self, settings: TrainerSettings, ports: TrainerPorts, waits: WaitRegistry) -> None:
        super().__init__(settings, ports, waits)
        self._settings = settings
        self._state = TrainerState()
        self._members = Members(self.thread.loop)
        self._group = self._sender()
        self._exporter: Exporter | None = None
        if (exports := self.paths.exports_of(settings.spec)) is not None:
            start = self.paths.start_model
            base = (start, self.paths.tokenizer, settings.spec.model.chat_template)
            merged_into = base if settings.adapter is not None else None
            self._exporter = Exporter(exports, self.paths.weights, start, merged_into)
        wanted = settings.spec.observability.traces
        asked = (wanted.endpoint, wanted.sample_rate) if wanted is not None else (None, None)
        self._traces = open_traces(settings.uid, "trainer", settings.name, *asked)
        self._spans = StepSpans(self._traces)
        self.closing.append(self._traces.close)

    def restore(self, found: FoundCheckpoint | None) -> RankMessage:
        if found is not None:
            self._state = TrainerState(found.record.step)
        return super().restore(found)

    def start(self, stopping: Callable[[], bool], timer: PhaseTimer) -> FirstRank:
        """Agree with ledger and controller on the position, leave evidence, and open the doors."""
        settings, state, fence = self._settings, self._state, self.fence
        ledger = SyncLedger(
            settings.redis,
            settings.uid,
            username=settings.redis_user,
            password=settings.redis_password,
            retry_for_s=settings.outage_s,
        )
        link = self._link = self._connect()
        patience_s = max(settings.outage_s, settings.patience_s)
        with self.waits.waiting("ledger", "the replay store", deadline_s=patience_s):
            _reach(ledger, patience_s, stopping)
            ledger.recover(fence, state.step)
        served = link.attach(state.step, patience_s=patience_s, stopping=stopping)
        careful = precaution(self.evidence, state.step)
        if careful.tombstone is not None:
            detail = f"step {careful.step} crashed {careful.crashes} times with it"
            link.propose_tombstone(careful.tombstone, TombstoneReason.POISON.value, detail)
        log = EvidenceLog(self.paths.evidence, fence)
        log.start(state.step, settings.spec.algorithm.batch_size, settings.spec.algorithm.group_size)
        consumer = Consumer(fence, state, settings.consumer, self._served_version(served))
        if link.orders.max_steps is not None:
            consumer.set_max_steps(link.orders.max_steps)
        self.telling.max_steps = consumer.policy.max_steps
        link.start_beats()
        self.closing.append(StallWatch(self.progress).on_thread())
        self.ready()
        self._feed = Feed(
            ledger,
            link,
            consumer,
            log,
            waits=self.waits,
            timer=timer,
            precaution=careful,
            groups_deadline_s=settings.spec.groups_patience_s,
            outage_s=settings.outage_s,
            by_turns=settings.spec.shared_cards,
        )
        reporter = Reporter(
            self.paths.metrics, self.paths.tensorboard, fence, self.metrics, self.progress, self._traces
        )
        self.closing += [reporter.close, self._feed.close, link.close]
        self.progress.policy_id = str(PolicyId(state.step, fence))
        timer.doing, timer.spent = self.doing, self._spans.beside(reporter.spent)
        recorder, batches = self._recorder(), self._batches()
        turn = None
        if settings.spec.shared_cards:
            turn = TrainerTurn(self.telling, link.orders, self.waits, settings.spec.groups_patience_s)
        return FirstRank(
            self._feed, reporter, stopping, recorder=recorder, batches=batches, spans=self._spans, turn=turn
        )

    def _served_version(self, served: str) -> int:
        """Version that servers hold or can read; −1 where none is left, and this trainer's first is published to them.

        What was handed over in memory is gone with the machine or pod, unless the volume had it, too; and the run may
        be a copy that came without its versions.
        """
        if not served:
            return -1
        policy, places = PolicyId.parse(served), (self.paths.handed, self.paths.weights)
        if not any(root is not None and (root / policy.directory).is_dir() for root in places):
            log.warning("%s is nowhere any more: version %d is published to servers", policy, self._state.step)
            return -1
        return policy.version

    def announce(self, reference: WeightsRef, final: bool) -> str:
        """Tell the controller about a version; answers the policy that is served then."""
        served = self._link.publish(reference.message(), final)
        self._spans.published(str(reference.policy_id))
        return served

    def still_mine(self) -> None:
        self._link.check()
        super().still_mine()

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
        paths = self.paths
        version = paths.weights / PolicyId(self._feed.consumer.version, self.fence).directory
        with self.waits.waiting("model", "the final model to be copied out of its version"):
            if self._settings.adapter is not None:
                template = self._settings.spec.model.chat_template
                merge(paths.start_model, paths.tokenizer, version, paths.model, template)
            else:
                copy_model(version, paths.model)
        self._feed.finished()

    def exporter(self) -> Exporter | None:
        """Exporter of published versions, where the job asks for models of them."""
        return self._exporter

    def tidy(self) -> None:
        """The final version is evaluated: exports that are kept no longer go."""
        if self._exporter is not None:
            self._exporter.tidy()

    def group(self) -> GroupSender | None:
        """Sender of versions to servers by a process group, where the job wants that."""
        return self._group

    def _recorder(self) -> StepRecorder | None:
        wanted, paths = self._settings.spec.recording, self.paths
        if wanted.share <= 0:
            return None
        keep = wanted.keep // 2  # the workers have the other half
        writer = RecordWriter(paths.recording, "trainer", self.metrics, keep_bytes=keep)
        self.closing.append(writer.close)

        def pieces() -> Piece:
            return Tokenizer.from_dir(paths.tokenizer, model_dir=paths.start_model).piece

        half = wanted.budget_per_step // 2  # the workers have the other half
        return StepRecorder(
            writer,
            share=wanted.share,
            budget_bytes=half,
            worker_budget_bytes=half // self._settings.spec.rollout.workers,
            pieces=pieces,
        )

    def _batches(self) -> BatchJournal | None:
        wanted = self._settings.spec.recording
        if not wanted.token_audit:
            return None
        keep = wanted.keep // 2  # the servers have the other half
        writer = RecordWriter(self.paths.tokens, "trainer", self.metrics, keep_bytes=keep)
        journal = BatchJournal(writer, self.fence, self._settings.spec.rollout.sampling.temperature)
        self.closing.append(journal.close)
        return journal

    def _connect(self) -> ControllerLink:
        settings = self._settings
        link = ControllerLink(
            settings.controller,
            settings.token,
            self.fence,
            thread=self.thread,
            waits=self.waits,
            progress=self.progress,
            telling=self.telling,
            incarnation=f"{os.getpid()}-{uuid.uuid4().hex[:8]}",
            outage_s=settings.outage_s,
        )
        members = (weights_grpc.add_WeightGroupServicer_to_server, self._members, "areal.v1.WeightGroup")
        self.serve(*([members] if self._group is not None else []))
        return link

    def _sender(self) -> GroupSender | None:
        settings = self._settings
        if settings.advertise is None:
            return None
        gpus = settings.spec.trainer.gpus and settings.spec.generation.engine.type == "sglang"
        options = GroupOptions(
            address=settings.advertise.rpartition(":")[0].strip("[]"),
            backend="nccl" if gpus else "gloo",
            devices=settings.spec.trainer.gpus or 1,
            bucket_bytes=settings.spec.weight_sync.bucket_bytes,
        )
        return GroupSender(self._members, options, self.waits, self._sent)

    def _sent(self, phase: str, seconds: float) -> None:
        """A phase of a version's way through the process group has ended."""
        if phase.startswith("fault"):
            self.metrics.counter("areal_weight_sync_failures_total", reason="group").inc()
        else:
            self.metrics.histogram("areal_weight_sync_duration_seconds", mode="group", stage=phase).observe(seconds)


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
