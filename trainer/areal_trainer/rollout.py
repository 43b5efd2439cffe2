"""Batches in, weights out: the training loop's interface to ledger and servers.

One of the two objects a training loop works with (the other is `Actor`). Every method is a collective: all ranks call
it in the same order. Rank 0 holds the `Feed`; the others are told.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areal.errors import InfraError
from areal.ledger.consumer import Batch, TrainerState
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId

from areal_trainer.actor import Actor, UpdateFigures
from areal_trainer.algorithms.advantages import Advantages
from areal_trainer.batch_journal import BatchJournal
from areal_trainer.checkpoint.saving import Position, Saving
from areal_trainer.data.batch import TokenBatch, columns
from areal_trainer.engine.group import Ranks, wait_together
from areal_trainer.engine.message import Message
from areal_trainer.feed import Feed, Taken
from areal_trainer.publish.canary import Probe, canary
from areal_trainer.publish.plan import owners
from areal_trainer.publish.publisher import Order, Publisher
from areal_trainer.recording import StepRecorder
from areal_trainer.reporting import Reporter
from areal_trainer.spans import StepSpans
from areal_trainer.timer import PhaseTimer, seconds_by_rank

_log = logging.getLogger(__name__)

PUBLISH_DEADLINE_S = 600.0  # writing a large model to a slow volume; the controller's answer has its own bound
_ROW_DEADLINE_S = 900.0  # from one evaluated row to the next
_SLICE_S = 5.0  # between two words to the other ranks


@dataclass(frozen=True)
class TrainBatch:
    """The groups of one step. `max_steps` is the run's length as known now: the schedule depends on it."""

    step: int
    max_steps: int
    tokens: TokenBatch
    micro_batch_divisor: int = 1


@dataclass(frozen=True)
class Due:
    """What is to be done after a step, the same on every rank."""

    publish: bool
    checkpoint: bool
    position: Position


@dataclass
class FirstRank:
    """What rank 0 has and the others don't."""

    feed: Feed
    reporter: Reporter
    waits: WaitRegistry
    stopping: Callable[[], bool] = lambda: False
    recorder: StepRecorder | None = None
    batches: BatchJournal | None = None
    spans: StepSpans = field(default_factory=StepSpans)


class Rollout:
    """The ledger and the servers, as the training loop sees them."""

    def __init__(
        self,
        ranks: Ranks,
        fence: int,
        vocabulary: int,
        *,
        first: FirstRank | None,
        publisher: Publisher,
        timer: PhaseTimer,
        probe: Probe,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if ranks.first != (first is not None):
            raise ValueError("rank 0, and only rank 0, has the feed")
        self._ranks = ranks
        self._fence = fence
        self._vocabulary = vocabulary
        self._first = first
        self._publisher = publisher
        self._writers: dict[str, int] = {}  # which rank writes which tensor
        self._timer = timer
        self._probe = probe
        self._now = now
        self._sleep = sleep
        self._batch: Batch | None = None
        self._saving: Saving | None = None  # the newest checkpoint
        self._uncommitted: Saving | None = None  # on rank 0: it, while the ledger still holds what is in it
        self.stopped = False  # asked to stop before the last step

    def prepare_batch(self) -> TrainBatch | None:
        """The next batch in order, as soon as it may be trained; None when the run is over or must stop."""
        while True:
            message = self._ranks.tell(self._poll()) if self._first else self._told()
            match message.header["kind"]:
                case "batch":
                    return _batch(message)
                case "end":
                    self.stopped = bool(message.header["stopped"])
                    return None

    def trained(self, batch: TrainBatch, advantages: Advantages, update: UpdateFigures) -> Due:
        """The batch is consumed: leaves evidence and metrics, moves on, and says what is due."""
        header: dict[str, Any] = {}
        seconds = self._timer.take()
        others = seconds_by_rank(seconds, self._ranks)[1:]
        if self._first is not None:
            assert self._batch is not None
            feed = self._first.feed
            feed.trained(self._batch, applied=update.learned)
            if self._first.batches is not None:
                self._first.batches.step(batch.step, batch.tokens)
            self._first.reporter.step(batch.step, batch.tokens, advantages, update, seconds, others)
            if self._first.recorder is not None and update.tokens is not None:
                stored = {
                    (group.group, index): raw
                    for group in self._batch.groups
                    for index, raw in zip(group.indices, group.payloads, strict=True)
                }
                self._first.recorder.step(
                    batch.step, batch.tokens, advantages, update.tokens, feed.digests, stored, seconds
                )
            groups = (group.group for group in self._batch.groups)
            self._first.spans.trained(batch.step, groups, learned=update.learned)
            feed.link.telling.skipped_steps = self._first.reporter.skipped_steps
            feed.link.telling.tokens_per_s = self._first.reporter.tokens_per_s
            header = self._due()
        return self._agree(header)

    def _told(self) -> Message:
        """On other ranks than 0: what rank 0 says next; their wait for samples is the wait for its word."""
        with self._timer.phase("wait"):
            return self._ranks.tell(None)

    def due(self, *, checkpoint_now: bool = False) -> Due:
        """What is to be done now, without a step before it: at the start and at the end."""
        return self._agree(self._due(checkpoint_now) if self._first is not None else {})

    def publish(self, actor: Actor) -> None:
        """Publish the current weights; written and announced beside training, the final version awaited."""
        with self._timer.phase("publish"):
            proof = canary(actor.engine, self._probe)
            order = self._order()
            if self._first is not None:
                self._first.spans.publishing(str(order.policy))
            if not self._writers:
                whole = actor.engine.options.adapter is None  # an adapter is one file, and small
                self._writers = owners(actor.engine.export_sizes(), self._ranks.world_size if whole else 1)
            tensors = actor.engine.export(self._writers)
            self._publisher.publish(order, tensors, proof, deadline_s=PUBLISH_DEADLINE_S)
            if self._first is not None:
                self._first.feed.consumer.published()
            if order.final:
                self._publisher.wait(PUBLISH_DEADLINE_S)

    def settle(self) -> None:
        """Wait until what was published is out."""
        self._publisher.wait(PUBLISH_DEADLINE_S)

    def _order(self) -> Order:
        """All ranks learn what is published, once the version before is out."""
        deadline = self._now() + PUBLISH_DEADLINE_S
        while True:
            told = self._ranks.tell(self._next_order(deadline) if self._first is not None else None).header
            if told["policy"]:
                return Order(
                    PolicyId.parse(told["policy"]), Path(told["staging"]), told["final"], told["full"], told["byGroup"]
                )

    def _next_order(self, deadline: float) -> Message:
        """Rank 0: the next publication; without a policy while the one before still runs."""
        assert self._first is not None
        words = "the version before to be written and accepted"
        with self._first.waits.waiting("publish", words, deadline_s=PUBLISH_DEADLINE_S):
            idle = self._publisher.idle(_SLICE_S)
        if not idle and self._now() > deadline:
            raise InfraError(
                f"publishing weights takes longer than {PUBLISH_DEADLINE_S:.0f} s", fix="check the run's volume"
            )
        if not idle:
            return Message({"policy": ""}, {})
        consumer = self._first.feed.consumer
        order = self._publisher.order(PolicyId(consumer.version, self._fence), final=consumer.finished)
        told = {"policy": str(order.policy), "staging": str(order.staging), "final": order.final, "full": order.full}
        return Message({**told, "byGroup": order.by_group}, {})

    def commit(self, saving: Saving) -> None:
        """What a checkpoint holds may be freed, once it is on disk: seen to beside training."""
        self._commit_sealed()  # the one before: `Actor.save` has waited for it
        self._saving = saving
        self._uncommitted = saving if self._first is not None else None

    def saved(self) -> None:
        """Wait until the checkpoint under way is on disk, and what it holds is freed."""
        if self._saving is not None:
            with self._timer.phase("checkpoint"):
                self._saving.wait()
            self._saving = None
        self._commit_sealed()

    def _commit_sealed(self) -> None:
        """Rank 0: what is on disk may be freed. Raises what went wrong with writing it."""
        if self._first is None or self._uncommitted is None or (saved := self._uncommitted.done()) is None:
            return
        self._uncommitted = None
        position = saved.position
        self._first.feed.committed(TrainerState(position.step, position.next_group, position.tombstones_below))
        self._first.reporter.checkpoint(saved)

    def evaluate(self) -> None:
        """Wait until the controller's evaluation of the final version is done. Raises InfraError without progress."""
        if self._first is None:
            wait_together(self._ranks, None)
            return
        orders = self._first.feed.link.orders
        words = "the evaluation of the final version"
        ended, progress_at = orders.evaluated_rows, self._now()

        def done(within_s: float) -> bool:
            nonlocal ended, progress_at
            if self._evaluated(within_s):
                return True
            if orders.evaluated_rows != ended:
                ended, progress_at = orders.evaluated_rows, self._now()
            if self._now() - progress_at > _ROW_DEADLINE_S:
                raise InfraError(
                    f"{words} ended no row in {_ROW_DEADLINE_S:.0f} s, {ended} before",
                    fix="`areal status` shows which rows are missing",
                )
            return False

        with self._first.waits.waiting("evaluation", words):
            wait_together(self._ranks, done)

    def _evaluated(self, within_s: float) -> bool:
        """Whether the evaluation is done in time."""
        assert self._first is not None
        link = self._first.feed.link
        until = self._now() + within_s
        while not link.orders.evaluation_done and self._now() < until:
            link.check()
            self._sleep(0.05)  # beats arrive on another thread, every half second
        return link.orders.evaluation_done

    # ---- rank 0

    def _poll(self) -> Message:
        assert self._first is not None
        self._commit_sealed()
        feed = self._first.feed
        stopping = self._first.stopping()
        if stopping or feed.consumer.finished:
            return Message({"kind": "end", "stopped": stopping and not feed.consumer.finished}, {})
        taken = feed.poll()
        if taken is None:
            return Message({"kind": "wait"}, {})
        self._batch = taken.batch
        with self._timer.phase("take"):
            return self._message(taken)

    def _message(self, taken: Taken) -> Message:
        header = {
            "kind": "batch",
            "step": taken.batch.step,
            "max_steps": taken.max_steps,
            "micro_batch_divisor": taken.micro_batch_divisor,
        }
        return Message(header, columns(taken.samples, self._vocabulary).arrays())

    def _due(self, checkpoint_now: bool = False) -> dict[str, Any]:
        assert self._first is not None
        self._commit_sealed()
        feed = self._first.feed
        # Asked for space, the trainer is writing what gives it.
        wanted = checkpoint_now or (feed.link.orders.checkpoint_now and self._uncommitted is None)
        state = feed.consumer.state
        return {
            "publish": feed.consumer.publish_due(),
            "checkpoint": feed.consumer.checkpoint_due(wanted),
            "position": [state.step, state.next_group, state.tombstones_below],
        }

    def _agree(self, header: dict[str, Any]) -> Due:
        told = self._ranks.tell(Message(header, {}) if self._first is not None else None).header
        step, next_group, tombstones_below = told["position"]
        return Due(told["publish"], told["checkpoint"], Position(step, next_group, tombstones_below, self._fence))


def _batch(message: Message) -> TrainBatch:
    arrays: dict[str, Any] = dict(message.arrays)
    return TrainBatch(
        step=message.header["step"],
        max_steps=message.header["max_steps"],
        tokens=TokenBatch(**arrays),
        micro_batch_divisor=message.header["micro_batch_divisor"],
    )
