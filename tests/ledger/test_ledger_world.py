"""Whole runs over the model, under faults: every group exactly once, every token young enough; and every mutant is
found out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from areal.errors import ArealError
from areal.ledger.consumer import Batch, Consumer, TrainerState
from areal.ledger.gate import GatePolicy, Window
from areal.ledger.state import LedgerModel
from areal.ledger.values import AddResult, SampleMeta, TakenGroup
from ledger_world import Stalled, Violation, World

SCHEDULES = 400


def found_out(world: type[World], schedules: int = SCHEDULES) -> str | None:
    """The first thing that goes wrong, with its seed."""
    for seed in range(schedules):
        try:
            world(seed).run()
        except (Violation, Stalled, ArealError) as error:
            return f"seed {seed}: {type(error).__name__}: {error}"
    return None


def test_every_group_is_trained_once_or_tombstoned_whatever_dies() -> None:
    assert found_out(World) is None


# ---- mutants of the ledger


class NoDedup(LedgerModel):
    """A second attempt is stored beside the first, and closed groups take samples."""

    def add_sample(self, group: int, index: int, payload: bytes, meta: SampleMeta) -> AddResult:
        self.closed, kept = {}, self.closed
        try:
            return super().add_sample(group, index, payload, meta)
        finally:
            self.closed = kept


class SkipsGaps(LedgerModel):
    """take passes over open groups."""

    def take(self, fence: int, from_group: int, max_groups: int) -> list[TakenGroup]:
        return [t for g in sorted(self.closed) if g >= from_group for t in super(SkipsGaps, self).take(fence, g, 1)][
            :max_groups
        ]


class TakeFromTheTop(LedgerModel):
    """take ignores from_group."""

    def take(self, fence: int, from_group: int, max_groups: int) -> list[TakenGroup]:
        return super().take(fence, min(self.closed, default=0), max_groups)


class RecoverKeepsStream(LedgerModel):
    """recover leaves the ready stream as it was."""

    def recover(self, fence: int, consumed: int, cursor: int | None = None) -> None:
        kept = self.ready
        super().recover(fence, consumed, cursor)
        self.ready = [g for g in kept if g in self.closed] + self.ready


class RecoverNeverLowers(LedgerModel):
    """recover keeps a watermark that is higher than the checkpoint."""

    def recover(self, fence: int, consumed: int, cursor: int | None = None) -> None:
        super().recover(fence, max(consumed, self.frontier), cursor)


class NoFence(LedgerModel):
    """Old trainers are served."""

    def _check_trainer(self, fence: int) -> None:
        self.trainer_fence = max(self.trainer_fence, fence)


class FreesTooMuch(LedgerModel):
    """commit frees one group too many."""

    def commit(self, fence: int, consumed: int) -> int:
        return super().commit(fence, consumed + 1)


class TombstoneKeepsSamples(LedgerModel):
    """A filtered group stays in memory."""

    def close(self, fence: int, group: int, outcome: str, *rest: Any) -> Any:
        held = self.samples.get(group)
        result = super().close(fence, group, outcome, *rest)
        if held and group >= self.low:
            self.samples[group] = held
        return result


# ---- mutants of the trainer's core


class ForgetsTombstones(Consumer):
    """The position moves by groups, the count of tombstones doesn't."""

    def offer(self, *args: Any) -> Batch | None:
        self._tombstones, before = 0, self._tombstones
        batch = super().offer(*args)
        self._tombstones = before if batch is None else self._tombstones
        return batch


class PublishesBackwards(Consumer):
    """A replaying trainer publishes what it holds; the final version is forgotten when an older trainer served it."""

    def publish_due(self) -> bool:
        return self.served_version < 0 or (self.version != self.served_version and self.version % 2 == 1)


class SkipsCheckpointedStep(Consumer):
    """Restarts one batch behind what the checkpoint says."""

    def __init__(self, fence: int, state: TrainerState, *rest: Any) -> None:
        super().__init__(fence, state, *rest)
        if state.step:
            self._state = TrainerState(state.step, state.next_group + 1, state.tombstones_below + 1)


class Blind(Consumer):
    """The staleness check dropped."""

    def _checked(self, group: TakenGroup, ages: Any) -> Any:
        return []


def with_model(model: type[LedgerModel]) -> type[World]:
    return type(f"With{model.__name__}", (World,), {"model": model})


def with_consumer(consumer: type[Consumer], base: type[World] = World) -> type[World]:
    return type(f"With{consumer.__name__}", (base,), {"consumer": consumer})


# ---- mutants of the protocol between them


class CommitBeforeCheckpoint(World):
    """Frees what a crash will ask for again, and restarts where it freed."""

    def save_or_commit(self, trainer: Consumer) -> None:
        if self.saved:
            self.store.commit(self.trainer_fence, trainer.state.next_group)
            self.saved = False
        else:
            self.checkpoint = trainer.state
            trainer.committed(trainer.state)
            self.saved = True

    def start_trainer(self) -> None:
        super().start_trainer()
        self.store.low = max(self.store.low, self.history[-1].low)


class FloorOffByOne(World):
    """Servers may be one version older than the bound."""

    def may_sample(self, oldest: int, server: int) -> bool:
        return super().may_sample(oldest - 1, server)


class GateOffByOne(World):
    """Admits one step too many."""

    def room(self, window: Window, policy: GatePolicy) -> int:
        return super().room(replace(window, newest_version=window.newest_version + 1), policy)


class NoRestartInEvidence(World):
    """A trainer that goes back doesn't say so."""

    def start_trainer(self) -> None:
        super().start_trainer()
        if self.trainer_fence > 1:
            self.evidence.starts[-1] = self.evidence.starts[0]


class TombstonesBelowTheCursor(World):
    """The controller filters groups that the trainer already took."""

    def decidable(self) -> list[int]:
        return [g for g in range(self.store.low, self.next_admission) if g not in self.journal.tombstones]


class JournalAfterwards(World):
    """Tombstones live in the store only."""

    def tombstone(self, group: int, reason: str) -> None:
        super().tombstone(group, reason)
        if self.random.random() < 0.5:
            del self.journal.tombstones[group]


class JournalNotReapplied(World):
    """After lost data a tombstone stays what it became: an open group that nobody generates."""

    def reapply(self) -> None:
        self.store.claim(self.controller_fence)


class AcknowledgesBlindly(World):
    """A batch taken before the store lost its tail is trained, whatever became of its groups since."""

    def rank(self, group: int) -> int:
        offered = self.offered
        if offered is not None and not self.accepted and group == offered.next_group:
            return (offered.step + 1) * self.batch
        return super().rank(group)


MUTANTS = [
    with_model(NoDedup),
    with_model(SkipsGaps),
    with_model(TakeFromTheTop),
    with_model(RecoverKeepsStream),
    with_model(RecoverNeverLowers),
    with_model(NoFence),
    with_model(FreesTooMuch),
    with_model(TombstoneKeepsSamples),
    with_consumer(ForgetsTombstones),
    with_consumer(PublishesBackwards),
    with_consumer(SkipsCheckpointedStep),
    with_consumer(Blind, FloorOffByOne),
    FloorOffByOne,
    CommitBeforeCheckpoint,
    GateOffByOne,
    NoRestartInEvidence,
    TombstonesBelowTheCursor,
    JournalAfterwards,
    JournalNotReapplied,
    AcknowledgesBlindly,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found_out(mutant: type[World]) -> None:
    assert found_out(mutant) is not None
