"""Rank 0's side of the ledger: takes batches in order, tells the controller, leaves evidence, commits.

Owns the order of those four, which is what makes training exactly once: a batch is decoded, the controller's
acknowledgement is waited for, the attempt is on disk, and only then is the batch handed to training.
Drives `ledger.consumer`, which owns the rules. Every wait is a bounded slice, so that the other ranks hear something.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from areal.errors import DataError, InfraError
from areal.ledger import payload
from areal.ledger.consumer import Batch, Consumer, TrainerState, check_spans
from areal.ledger.evidence import EvidenceLog, Precaution, TrainedGroup
from areal.ledger.sync_client import SyncLedger
from areal.ledger.values import TakenGroup, TombstoneReason
from areal.observe.waits import WaitRegistry
from areal.v1 import common_pb2 as common

from areal_trainer.control import ControllerLink
from areal_trainer.spans import PhaseTimer

_log = logging.getLogger(__name__)

SLICE_S = 0.5  # other ranks, signals and fences are looked at this often
BEGINNING_SLICE_S = 0.1  # the same while groups may be begun before their batch is whole
PARTS = 32  # of a batch, at most about so many are begun before it is whole: each costs a reduction over ranks
REATTACH_EVERY = 3  # refused acknowledgements in a row that a controller without memory of this trainer explains


@dataclass(frozen=True)
class TakenBatch:
    """A batch that may be trained now."""

    batch: Batch
    samples: tuple[common.Sample, ...]
    max_steps: int
    micro_batch_divisor: int
    whole: bool = True  # else groups of a batch that isn't whole yet


class Feed:
    """Everything rank 0 does with the ledger while training."""

    def __init__(
        self,
        ledger: SyncLedger,
        link: ControllerLink,
        consumer: Consumer,
        evidence: EvidenceLog,
        *,
        waits: WaitRegistry,
        timer: PhaseTimer,
        precaution: Precaution | None = None,
        groups_deadline_s: float = 3600.0,
        outage_s: float = 120.0,
        by_turns: bool = False,
    ) -> None:
        """`by_turns`: no group comes while this trainer has the cards, so none is waited for."""
        self.consumer = consumer
        self.link = link
        self._ledger = ledger
        self._evidence = evidence
        self._waits = waits
        self._timer = timer
        self._precaution = precaution
        self._groups_deadline_s = groups_deadline_s
        self._outage_s = outage_s
        self._by_turns = by_turns
        self._waiting = ExitStack()
        self._waiting_since: float | None = None
        self.idle = False  # the newest look found no group at all
        self._refused = 0
        self._refused_since = 0.0
        self.digests: dict[int, tuple[tuple[int, int], ...]] = {}  # of the batch: group → (index, xxh3)
        self._ages: dict[int, tuple[int, ...]] = {}  # of the batch, as `check_spans` has them

    # ---- take

    def poll(self, *, early: bool = False) -> TakenBatch | None:
        """The next batch when it is whole, else None after at most one slice.

        With `early` groups of it come before, each once: their gradient may be taken, and counts for nothing until the
        whole batch comes.
        """
        self.look()
        wanted = self.consumer.want()
        if wanted is None:
            return None
        with self._timer.phase("take"):
            groups = self._ledger.take(self.consumer.fence, wanted)
        self.idle = not groups
        if not groups:
            careful = self._precaution
            crashed = careful is not None and careful.crashes > 0 and careful.step == wanted
            early &= not (self._by_turns or crashed)  # a step that crashes shall crash with all of its batch
            if early and (begun := self._begin(wanted)) is not None:
                return begun
            if not self._by_turns:
                self._wait(wanted, BEGINNING_SLICE_S if early else SLICE_S)
            return None
        batch = self.consumer.offer(groups)
        if batch is None:
            return None
        with self._timer.phase("take"):
            samples = self._decode(batch.groups)
            if samples is None or not self._acknowledged(batch):
                return None
        self._waiting.close()
        self._waiting_since = None
        self._evidence.attempt(batch.step, _tokens(batch))
        divisor = 1
        if self._precaution is not None and self._precaution.step == batch.step:
            divisor = self._precaution.micro_batch_divisor
        return TakenBatch(batch, samples, self.consumer.policy.max_steps, divisor)

    def _begin(self, step: int) -> TakenBatch | None:
        """Groups that the batch of `step` will have, when enough are complete that weren't begun."""
        due, groups = self.link.orders.due
        fresh = [group for group in groups if group not in self.consumer.begun]
        if due != step or len(fresh) < max(1, self.consumer.policy.batch_groups // PARTS):
            return None
        with self._timer.phase("take"):
            taken = self._ledger.peek(fresh)
            samples = self._decode(taken)
        if samples is None or (part := self.consumer.begin(step, taken)) is None:
            return None
        self._evidence.attempt(step, _tokens(part))  # what is begun may be what the trainer dies of
        return TakenBatch(part, samples, self.consumer.policy.max_steps, 1, whole=False)

    def look(self) -> None:
        """Hear the controller: whether this trainer is the living one, and how long the run is."""
        self.link.check()
        if self.link.orders.max_steps is not None:
            self.consumer.set_max_steps(self.link.orders.max_steps)
            self.link.telling.max_steps = self.consumer.policy.max_steps

    def _wait(self, step: int, slice_s: float) -> None:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
            words = f"the batch of step {step}"
            self._waiting.enter_context(self._waits.waiting("groups", words, deadline_s=self._groups_deadline_s))
        elif now - self._waiting_since > self._groups_deadline_s:
            raise InfraError(
                f"no batch was chosen for step {step} within {self._groups_deadline_s:.0f} s",
                fix="`areal status` names what the controller, the workers and the servers wait for",
            )
        with self._timer.phase("wait"):
            self._ledger.wait_ready(self.consumer.fence, step, slice_s)

    def _decode(self, groups: Sequence[TakenGroup]) -> tuple[common.Sample, ...] | None:
        """All samples in order; None when one is damaged and its group was given up."""
        samples: list[common.Sample] = []
        self.digests, self._ages = {}, {}
        for group in groups:
            try:
                decoded = [payload.decode(raw) for raw in group.payloads]
                self._ages[group.group] = check_spans(group, decoded)
            except DataError as error:
                if not self.link.propose_tombstone(group.group, TombstoneReason.POISON.value, error.message):
                    raise
                _log.error("group %d is given up: %s", group.group, error.message)
                self.consumer.drop()
                return None
            self.digests[group.group] = _digests(group)
            samples += decoded
        return tuple(samples)

    def _acknowledged(self, batch: Batch) -> bool:
        """Whether the controller knows that the batch is in hand, so that it may be trained."""
        try:
            max_steps = self.link.advance(batch.step, len(batch.groups))
        except InfraError as error:
            self.consumer.drop()
            self._patience(error)
            return False
        self._refused = 0
        if not self.consumer.accept(batch, max_steps or self.consumer.policy.max_steps):
            _log.info("the run was shortened to end before step %d", batch.step)
            return False
        return True

    def _patience(self, error: InfraError) -> None:
        """The controller is away, or the batch changed while it was taken: wait a little, then take again."""
        now = time.monotonic()
        self._refused += 1
        if self._refused == 1:
            self._refused_since = now
        if now - self._refused_since > self._outage_s:
            raise error
        _log.warning("the batch is taken again: %s", error.message)
        words = "the controller to acknowledge the batch"
        with self._waits.waiting("batch", words, deadline_s=self._outage_s):
            if self._refused % REATTACH_EVERY == 0:
                self.link.attach(self.consumer.state.step)
            time.sleep(min(0.1 * self._refused, 1.0))

    # ---- trained, committed

    def trained(self, batch: Batch, *, applied: bool) -> None:
        """The batch's gradient is in the weights, or was left out: evidence first, then the position moves."""
        groups = [TrainedGroup(one.group, self.digests[one.group], self._ages[one.group]) for one in batch.groups]
        if applied:
            self._evidence.trained(batch.step, groups)
        else:
            self._evidence.skipped(batch.step, groups)
        self.consumer.trained(batch)
        self.link.telling.step = self.consumer.state.step

    def committed(self, state: TrainerState) -> None:
        """A checkpoint of `state` is on disk: free what it holds."""
        self.consumer.committed(state)
        self._ledger.commit(self.consumer.fence, state.step)
        telling = self.link.telling
        telling.checkpoint_step, telling.checkpoint_at = state.step, time.time()
        self.link.orders.checkpoint_now = False

    def finished(self) -> None:
        """The run reached its last step and everything is published and saved."""
        self._evidence.finished(self.consumer.state.step)
        self.link.telling.finished = True

    def close(self) -> None:
        """Give everything back."""
        self._waiting.close()
        self._evidence.close()
        self._ledger.close_connection()


def _digests(group: TakenGroup) -> tuple[tuple[int, int], ...]:
    """(index, xxh3 of the sample) as the payload itself says, not as the ledger remembers."""
    return tuple((index, payload.digest(raw)) for index, raw in zip(group.indices, group.payloads, strict=True))


def _tokens(batch: Batch) -> dict[int, int]:
    return {group.group: sum(meta.tokens for meta in group.metas) for group in batch.groups}
