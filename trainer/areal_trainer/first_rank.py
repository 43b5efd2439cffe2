"""Rank 0's part of a training loop on the ledger: what it answers for all ranks, and what it tells people.

The other ranks have a null object in its place, and are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from areal.errors import InfraError
from areal.ledger.consumer import Batch, TrainerState
from areal.values.policy import PolicyId

from areal_trainer.actor import UpdateFigures
from areal_trainer.algorithms.advantages import Advantages
from areal_trainer.batch_journal import BatchJournal
from areal_trainer.cards import TrainerTurn
from areal_trainer.checkpoint.saving import Saving
from areal_trainer.data.batch import columns
from areal_trainer.engine.group import RankMessage
from areal_trainer.feed import SLICE_S, Feed
from areal_trainer.figures import sample_means
from areal_trainer.publish.publisher import Publisher
from areal_trainer.recording import StepRecorder, TrainedStep
from areal_trainer.reporting import Reporter
from areal_trainer.spans import PhaseTimer, StepSpans

if TYPE_CHECKING:
    from areal.image_shape import ImageShape

    from areal_trainer.rollout import TrainBatch

PUBLISH_DEADLINE_S = 600.0  # writing a large model to a slow volume; the controller's answer has its own bound
_ROW_DEADLINE_S = 900.0  # from one evaluated row to the next
_SLICE_S = 5.0  # between two words to the other ranks
_BEAT_S = 0.05  # beats arrive on another thread, every half second


class FirstRank:
    """The feed of the ledger, and who is told of each step."""

    def __init__(
        self,
        feed: Feed,
        reporter: Reporter,
        stopping: Callable[[], bool] = lambda: False,
        *,
        recorder: StepRecorder | None = None,
        batches: BatchJournal | None = None,
        spans: StepSpans | None = None,
        turn: TrainerTurn | None = None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.spans = spans or StepSpans()
        self._feed = feed
        self._reporter = reporter
        self._stopping = stopping
        self._recorder = recorder
        self._journal = batches
        self._turn = turn  # of shared cards
        self._now = now
        self._sleep = sleep
        self._batch: Batch | None = None
        self._figures: dict[str, float] = {}
        self._uncommitted: Saving | None = None  # the newest checkpoint, while the ledger still holds what is in it

    def poll(self, vocabulary: int, shape: ImageShape | None, timer: PhaseTimer, *, early: bool = False) -> RankMessage:
        """The next batch, a part with `early`; that there is none yet, or whose turn shared cards have; or the end."""
        self.commit_sealed()
        stopping, feed = self._stopping(), self._feed
        if self._turn is not None and self._turn.asleep:
            return self._rest(self._turn, stopping)
        if stopping or feed.consumer.finished:
            return RankMessage({"kind": "end", "stopped": stopping and not feed.consumer.finished}, {})
        if (taken := feed.poll(early=early)) is None:
            gives = self._turn is not None and feed.idle and self._turn.known(_BEAT_S)
            return RankMessage({"kind": "sleep" if gives else "wait"}, {})
        if taken.whole:
            self._batch, self._figures = taken.batch, sample_means(taken.samples)
        header = {
            "kind": "batch" if taken.whole else "part",
            "begun": taken.batch.begun,
            "step": taken.batch.step,
            "max_steps": taken.max_steps,
            "micro_batch_divisor": taken.micro_batch_divisor,
        }
        with timer.phase("take"):
            return RankMessage(header, columns(taken.samples, vocabulary, shape).arrays())

    def _rest(self, turn: TrainerTurn, stopping: bool) -> RankMessage:
        """While the servers have the cards: nothing is taken, only the controller's word is waited for."""
        self._feed.look()
        if stopping and turn.too_late():
            return RankMessage({"kind": "end", "stopped": True}, {})
        began = turn.begun(SLICE_S, stopping or self._feed.consumer.finished)
        return RankMessage({"kind": "wake" if began else "wait"}, {})

    def gave_back(self) -> None:
        """All ranks let go of the shared cards."""
        if self._turn is not None:
            self._turn.gave_back()

    def began(self) -> None:
        """All ranks have the shared cards."""
        if self._turn is not None:
            self._turn.began()

    def trained(
        self, batch: TrainBatch, advantages: Advantages, update: UpdateFigures, seconds: dict[str, float],
        others: Sequence[Sequence[float]],
    ) -> None:  # fmt: skip
        """The batch is consumed: evidence first, then the position moves, then people are told."""
        assert self._batch is not None
        taken, feed, reporter = self._batch, self._feed, self._reporter
        feed.trained(taken, applied=update.learned)
        if self._journal is not None:
            self._journal.step(batch.step, batch.tokens)
        figures = {**self._figures, **advantages.figures, **update.figures}
        reporter.step(batch.step, batch.tokens, advantages, update, seconds, others, figures)
        if self._recorder is not None and update.tokens is not None:
            stored = {
                (group.group, index): raw
                for group in taken.groups
                for index, raw in zip(group.indices, group.payloads, strict=True)
            }
            done = TrainedStep(
                batch.step, feed.consumer.fence, batch.tokens, advantages, update.tokens, feed.digests, stored, seconds
            )
            self._recorder.step(done)
        self.spans.trained(batch.step, (group.group for group in taken.groups), learned=update.learned)
        feed.link.telling.skipped_steps = reporter.skipped_steps
        feed.link.telling.tokens_per_s = reporter.tokens_per_s

    def due(self, checkpoint_now: bool = False) -> RankMessage:
        """Duties that are due now."""
        self.commit_sealed()
        feed = self._feed
        # Asked for space, the trainer is writing what gives it.
        wanted = checkpoint_now or (feed.link.orders.checkpoint_now and self._uncommitted is None)
        state = feed.consumer.state
        due = {
            "publish": feed.consumer.publish_due(),
            "checkpoint": feed.consumer.checkpoint_due(wanted),
            "step": state.step,
        }
        return RankMessage(due, {})

    def next_order(self, publisher: Publisher, fence: int, deadline: float) -> RankMessage:
        """The next publication; without a policy while the one before still runs."""
        if not (idle := publisher.idle(_SLICE_S)) and self._now() > deadline:
            raise InfraError(
                f"publishing weights takes longer than {PUBLISH_DEADLINE_S:.0f} s", fix="check the run's volume"
            )
        if not idle:
            return RankMessage({"policy": ""}, {})
        consumer = self._feed.consumer
        order = publisher.order(PolicyId(consumer.version, fence), final=consumer.finished)
        self.spans.publishing(str(order.policy))
        told = {"policy": str(order.policy), "staging": str(order.staging), "final": order.final, "full": order.full}
        return RankMessage({**told, "byGroup": order.by_group}, {})

    def published(self) -> None:
        """A version is on its way."""
        self._feed.consumer.published()

    def saving(self, saving: Saving) -> None:
        """A checkpoint is being written."""
        self._uncommitted = saving

    def commit_sealed(self) -> None:
        """What is on disk may be freed. Raises what went wrong with writing it."""
        if self._uncommitted is None or (saved := self._uncommitted.done()) is None:
            return
        self._uncommitted = None
        self._feed.committed(TrainerState(saved.position.step))
        self._reporter.checkpoint(saved)

    def evaluation(self) -> Callable[[float], bool]:
        """Whether the final version's evaluation ends within some seconds. Raises InfraError where no row does."""
        orders = self._feed.link.orders
        ended, progress_at = orders.evaluated_rows, self._now()

        def done(within_s: float) -> bool:
            nonlocal ended, progress_at
            until = self._now() + within_s
            while not orders.evaluation_done and self._now() < until:
                self._feed.link.check()
                self._sleep(_BEAT_S)
            if orders.evaluation_done:
                return True
            if orders.evaluated_rows != ended:
                ended, progress_at = orders.evaluated_rows, self._now()
            if self._now() - progress_at > _ROW_DEADLINE_S:
                raise InfraError(
                    f"the evaluation of the final version ended no row in {_ROW_DEADLINE_S:.0f} s, {ended} before",
                    fix="`areal status` shows which rows are missing",
                )
            return False

        return done
