"""Whole runs over the model, under faults: every group exactly once, every token young enough; and every mutant is
found out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from areal.errors import ArealError
from areal.ledger.consumer import Batch, Consumer, TrainerState
from areal.ledger.gate import GatePolicy, WaitingGroup, Window
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
    assert found_out(World, 200) is None


# ---- mutants of the ledger


class NoDedup(LedgerModel):
    """A second attempt is stored beside the first, and closed groups take samples."""

    def add_sample(self, group: int, index: int, payload: bytes, meta: SampleMeta) -> AddResult:
        self.closed, kept = {}, self.closed
        try:
            return super().add_sample(group, index, payload, meta)
        finally:
            self.closed = kept


class TakesWithHoles(LedgerModel):
    """take gives what is closed of a batch."""

    def take(self, fence: int, step: int) -> list[TakenGroup]:
        self._check_trainer(fence)
        closed = [group for group in self.batches.get(step, ()) if group in self.closed]
        return [self._taken(group, self.closed[group]) for group in closed]


class TakesTheFirst(LedgerModel):
    """take ignores the step."""

    def take(self, fence: int, step: int) -> list[TakenGroup]:
        return super().take(fence, min(self.batches, default=step))


class RecoverNeverLowers(LedgerModel):
    """recover keeps more committed steps than the checkpoint has."""

    def recover(self, fence: int, step: int) -> None:
        super().recover(fence, max(step, self.committed))


class FreedStaysFreed(LedgerModel):
    """A batch of which an older checkpoint lacks the gradient is not made again."""

    def assign(self, fence: int, step: int, groups: Sequence[int]) -> None:
        freed = {group: outcome for group, outcome in self.closed.items() if outcome == "trained"}
        super().assign(fence, step, groups)
        self.closed.update(freed)


class NoFence(LedgerModel):
    """Old trainers are served."""

    def _check_trainer(self, fence: int) -> None:
        self.trainer_fence = max(self.trainer_fence, fence)


class FreesTooMuch(LedgerModel):
    """commit frees one batch too many."""

    def commit(self, fence: int, step: int) -> int:
        return super().commit(fence, step + 1)


class TombstoneKeepsSamples(LedgerModel):
    """A filtered group stays in memory."""

    def close(self, fence: int, group: int, outcome: str, *rest: Any) -> Any:
        held = self.samples.get(group)
        result = super().close(fence, group, outcome, *rest)
        if held and group >= self.low:
            self.samples[group] = held
        return result


# ---- mutants of the trainer's core


class PublishesBackwards(Consumer):
    """A replaying trainer publishes what it holds; the final version is forgotten when an older trainer served it."""

    def publish_due(self) -> bool:
        return self.served_version < 0 or (self.version != self.served_version and self.version % 2 == 1)


class SkipsCheckpointedStep(Consumer):
    """Restarts one batch behind what the checkpoint says."""

    def __init__(self, fence: int, state: TrainerState, *rest: Any) -> None:
        super().__init__(fence, state, *rest)
        if state.step:
            self.state = TrainerState(state.step + 1)


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
    """Frees what a crash will ask for again."""

    def save_or_commit(self, trainer: Consumer) -> None:
        if self.saved:
            self.store.commit(self.trainer_fence, trainer.state.step)
            self.store.advance(self.controller_fence, self.low())
            self.saved = False
        else:
            self.checkpoints.append(trainer.state)
            trainer.committed(trainer.state)
            self.saved = True

    def assign_again(self) -> None:
        """Nothing says that the batches are to be made again."""


class FloorOffByOne(World):
    """Servers may be one version older than the bound."""

    def may_sample(self, floor: int, server: int) -> bool:
        return super().may_sample(floor - 1, server)


class GateOffByOne(World):
    """Admits one batch too many."""

    def room(self, window: Window, policy: GatePolicy) -> int:
        return super().room(replace(window, newest_version=window.newest_version + 1), policy)


class GrantsWhatComes(World):
    """Nobody asks whether a group can still be trained in time."""

    def grant(self, due: Mapping[int, int], versions: range) -> int | None:
        return versions.start


class NeverWaits(World):
    """Late groups are left out of every batch."""

    def pick(self, groups: Collection[WaitingGroup], *, by_index: bool) -> tuple[int, ...] | None:
        return super().pick([group for group in groups if group.complete], by_index=by_index)


class NoRestartInEvidence(World):
    """A trainer that goes back doesn't say so."""

    def start_trainer(self) -> None:
        super().start_trainer()
        if self.trainer_fence > 1:
            self.evidence.starts[-1] = self.evidence.starts[0]


class TombstonesWhatIsTaken(World):
    """The controller filters groups that the trainer already took."""

    def decidable(self) -> list[int]:
        if self.offered is not None and self.accepted:
            self.tombstone(self.offered.groups[0].group, "filtered") if self.offered.groups else None
        return super().decidable()


class JournalAfterwards(World):
    """Tombstones live in the store only."""

    def tombstone(self, group: int, reason: str) -> None:
        super().tombstone(group, reason)
        if self.random.random() < 0.5:
            del self.journal.tombstones[group]


class BatchesAfterwards(World):
    """A batch that the ledger has may be missing in the journal."""

    def start_controller(self) -> None:
        if len(self.journal.batches) > self.position:
            self.journal.batches.pop()
        super().start_controller()


class JournalNotReapplied(World):
    """After lost data a tombstone stays what it became: an open group that nobody generates."""

    def reapply(self) -> None:
        self.store.claim(self.controller_fence)


class BatchesNotToldAgain(World):
    """After lost data the ledger doesn't hear of the batches."""

    def assign_again(self) -> None:
        pass


class AcknowledgesBlindly(World):
    """A batch taken before the store lost its tail is trained, whatever became of its groups since."""

    def whole(self, batch: Batch) -> bool:
        return True

    def lose_tail(self) -> None:
        super().lose_tail()
        if self.offered is not None and not self.accepted and self.offered.groups:
            self.tombstone(self.offered.groups[0].group, "poison")


MUTANTS = [
    with_model(NoDedup),
    with_model(TakesWithHoles),
    with_model(TakesTheFirst),
    with_model(RecoverNeverLowers),
    with_model(FreedStaysFreed),
    with_model(NoFence),
    with_model(FreesTooMuch),
    with_model(TombstoneKeepsSamples),
    with_consumer(PublishesBackwards),
    with_consumer(SkipsCheckpointedStep),
    with_consumer(Blind, FloorOffByOne),
    FloorOffByOne,
    CommitBeforeCheckpoint,
    GateOffByOne,
    GrantsWhatComes,
    NeverWaits,
    NoRestartInEvidence,
    TombstonesWhatIsTaken,
    JournalAfterwards,
    BatchesAfterwards,
    JournalNotReapplied,
    BatchesNotToldAgain,
    AcknowledgesBlindly,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found_out(mutant: type[World]) -> None:
    assert found_out(mutant) is not None
