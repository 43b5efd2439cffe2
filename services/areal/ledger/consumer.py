"""The trainer's core: restart, take, publish, checkpoint and commit, without a model.

Owns the trainer's position in the order of groups. Promises: a batch is B complete groups in admission order; the
position moves only when a batch was trained; no sample older than its group's η is let through; nothing is published
twice or backwards, and the final version always. Pure: it is told what was taken, trained, published and saved, and
answers what to do next. The trainer and the simulation run this same code.

    batch = consumer.offer(taken, ages)        # None: take more
    if batch and consumer.accept(batch, reply.max_steps):   # after the controller acknowledged batch.next_group
        …train…
        consumer.trained(batch)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from areal.errors import BugError
from areal.ledger.gate import floor, may_sample
from areal.ledger.values import TakenGroup
from areal.v1 import common_pb2 as common
from areal.values.policy import version_of


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a checkpoint holds of the order: groups below `next_group` are in one of `step` batches or tombstoned."""

    step: int = 0  # batches trained: the policy version
    next_group: int = 0
    tombstones_below: int = 0  # of next_group

    def check(self, batch_groups: int) -> None:
        """Raises `BugError` unless next_group − tombstones_below = step·B."""
        if self.next_group - self.tombstones_below != self.step * batch_groups:
            raise BugError(f"{self} does not hold whole batches of {batch_groups} groups")


@dataclass(frozen=True, slots=True)
class ConsumerPolicy:
    """What the job asks of its trainer."""

    batch_groups: int  # B
    group_size: int  # n
    max_steps: int  # hot
    publish_interval: int = 1  # versions
    checkpoint_interval: int = 1  # steps


@dataclass(frozen=True, slots=True)
class SampleAge:
    """The oldest policy version in a sample, and the η of its group."""

    oldest_version: int
    max_staleness: int


@dataclass(frozen=True, slots=True)
class Batch:
    """B complete groups that make version `step` + 1."""

    step: int
    groups: tuple[TakenGroup, ...]
    next_group: int  # the trainer's position once it is trained
    tombstones_below: int
    oldest_version: int | None  # over all samples; None without any sampled token


class StalenessViolation(BugError):
    """A sample older than η reached the trainer. It is counted and alerted; its batch must not be trained."""

    def __init__(self, group: int, step: int, age: SampleAge) -> None:
        super().__init__(
            f"group {group} for step {step} holds a token of version {age.oldest_version}: "
            f"more than {age.max_staleness} versions old",
        )
        self.group, self.step, self.age = group, step, age


Ages = Callable[[TakenGroup], Iterable[SampleAge]]


def ages_from_meta(group: TakenGroup) -> list[SampleAge]:
    """Ages as the ledger states them beside the payloads."""
    return [SampleAge(meta.oldest_version, meta.max_staleness) for meta in group.metas]


def check_spans(group: TakenGroup, samples: Iterable[common.Sample]) -> None:
    """Refuse a group with a token older than the ledger states: a worker wrote both. Raises BugError."""
    for index, meta, sample in zip(group.indices, group.metas, samples, strict=True):
        versions = [version_of(span.policy_id) for row in sample.sequences for span in row.spans]
        if versions and min(versions) < meta.oldest_version:
            raise BugError(
                f"sample {index} of group {group.group} holds a token of version {min(versions)}, the ledger says that "
                f"its oldest is of version {meta.oldest_version}"
            )


class Consumer:
    """One trainer's life, from a checkpoint on. `served_version` is the controller's answer at attach, −1 for none."""

    def __init__(self, fence: int, state: TrainerState, policy: ConsumerPolicy, served_version: int = -1) -> None:
        state.check(policy.batch_groups)
        self.fence = fence
        self.policy = replace(policy, max_steps=max(policy.max_steps, state.step))
        self.served_version = served_version
        self._state = state
        self._committed = state
        self._gathered: list[TakenGroup] = []
        self._oldest: int | None = None
        self._tombstones = 0
        self._offered: Batch | None = None
        self._accepted = False
        self._final_published: int | None = None

    @property
    def state(self) -> TrainerState:
        """State for a checkpoint taken now."""
        return self._state

    @property
    def committed_state(self) -> TrainerState:
        """State of the newest checkpoint."""
        return self._committed

    @property
    def version(self) -> int:
        """The policy version the trainer holds."""
        return self._state.step

    @property
    def finished(self) -> bool:
        """Whether the last step is trained. The final version and checkpoint may still be due."""
        return self._state.step >= self.policy.max_steps

    # ---- take

    def want(self) -> tuple[int, int] | None:
        """Next groups to take, as (from_group, most groups); None while a batch is in work or when all is trained."""
        if self.finished or self._offered is not None:
            return None
        missing = self.policy.batch_groups - (len(self._gathered) - self._tombstones)
        return self._state.next_group + len(self._gathered), missing

    def offer(self, groups: Sequence[TakenGroup], ages: Ages = ages_from_meta) -> Batch | None:
        """Takes over what was taken; answers the next batch when it is whole.

        Raises `BugError` when groups are not those that `want` asked for or not whole, and `StalenessViolation`.
        """
        wanted = self.want()
        if wanted is None or not groups:
            return None
        from_group, most = wanted
        if [group.group for group in groups] != list(range(from_group, from_group + len(groups))) or len(groups) > most:
            raise BugError(f"asked for {most} groups from {from_group}, got {[group.group for group in groups]}")
        oldest = self._oldest
        for group in groups:
            if group.complete:
                for age in self._checked(group, ages):
                    oldest = age.oldest_version if oldest is None else min(oldest, age.oldest_version)
        self._oldest = oldest
        self._gathered += groups
        self._tombstones += sum(not group.complete for group in groups)
        complete = tuple(group for group in self._gathered if group.complete)
        if len(complete) < self.policy.batch_groups:
            return None
        self._offered = Batch(
            self._state.step,
            complete,
            self._state.next_group + len(self._gathered),
            self._state.tombstones_below + self._tombstones,
            self._oldest,
        )
        self._accepted = False
        return self._offered

    def accept(self, batch: Batch, max_steps: int) -> bool:
        """The controller acknowledged `batch.next_group`: whether to train the batch.

        Not when the run has been shortened to end before it: then its groups are tombstoned, and it is dropped.
        """
        if batch is not self._offered:  # shortened while the acknowledgement was on its way
            self.set_max_steps(max_steps)
            return False
        self._accepted = max_steps > batch.step
        if not self._accepted:
            self._forget()
        self.set_max_steps(max_steps)
        return self._accepted

    def drop(self) -> None:
        """Forgets everything taken and not trained: it will be taken again, as the ledger then has it."""
        self._forget()

    def trained(self, batch: Batch) -> None:
        """The batch went into the model, or counts as such because its update was skipped."""
        self._check_offered(batch)
        state = TrainerState(batch.step + 1, batch.next_group, batch.tombstones_below)
        state.check(self.policy.batch_groups)
        self._state = state
        self._forget()

    # ---- publish

    def publish_due(self) -> bool:
        """Whether to publish the version held: every interval, above the served one; the final one always."""
        if self.finished:
            return self._final_published != self.version
        if self.served_version < 0:
            return True
        return self.version > self.served_version and self.version % self.policy.publish_interval == 0

    def published(self, version: int | None = None) -> None:
        """The controller accepted the version held, or serves `version` already."""
        if version is None or version == self.version:
            self._final_published = self.version if self.finished else None
        self.served_version = max(self.served_version, self.version if version is None else version)

    # ---- checkpoint

    def checkpoint_due(self, requested: bool = False) -> bool:
        """Whether to save now: every interval, at the end, and on request; never the same state twice."""
        if self._state == self._committed:
            return False
        return requested or self.finished or self._state.step % self.policy.checkpoint_interval == 0

    def committed(self, state: TrainerState) -> None:
        """A checkpoint of `state` is on disk: only now may `commit(fence, state.next_group)` free its groups."""
        if state.next_group > self._committed.next_group:
            self._committed = state

    # ---- hot fields

    def set_max_steps(self, max_steps: int) -> None:
        """The job's new length. Less than what is trained, or acknowledged for training, means just that."""
        reached = self._state.step + (1 if self._offered is not None and self._accepted else 0)
        self.policy = replace(self.policy, max_steps=max(max_steps, reached))
        if self.finished:
            self._forget()

    # ---- shared pieces

    def _checked(self, group: TakenGroup, ages: Ages) -> Iterable[SampleAge]:
        if not group.payloads or len(set(group.indices)) != len(group.payloads):
            raise BugError(f"group {group.group} is complete with samples {group.indices}")
        if not set(group.indices) <= set(range(self.policy.group_size)):
            raise BugError(f"group {group.group} holds samples {group.indices} of {self.policy.group_size}")
        step = self._state.step
        checked = list(ages(group))
        for age in checked:
            oldest_allowed = floor(step * self.policy.batch_groups, self.policy.batch_groups, age.max_staleness)
            if not may_sample(oldest_allowed, age.oldest_version):
                raise StalenessViolation(group.group, step, age)
        return checked

    def _check_offered(self, batch: Batch) -> None:
        if batch is not self._offered:
            raise BugError(f"the batch of step {batch.step} is not the one offered last")

    def _forget(self) -> None:
        self._gathered, self._tombstones, self._oldest = [], 0, None
        self._offered, self._accepted = None, False
