"""The trainer's core: restart, take, publish, checkpoint and commit, without a model.

Owns the trainer's position: a step. Promises: a batch is what the controller chose for its step, less what has ended;
the position moves only when a batch was trained; no sample older than its group's bound is let through; nothing is
published twice or backwards, and the final version always. Pure: it is told what was taken, trained, published and
saved, and answers what to do next. The trainer and the simulation run this same code.

    batch = consumer.offer(taken, ages)        # None: take more
    if batch and consumer.accept(batch, reply.max_steps):   # after the controller acknowledged batch.step
        …train…
        consumer.trained(batch)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from areal.errors import BugError
from areal.ledger.values import TakenGroup
from areal.v1 import common_pb2 as common
from areal.values.policy import version_of


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a checkpoint holds of the order."""

    step: int = 0  # batches trained: the policy version


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
    """Groups that make version `step` + 1: B, less those that ended since they were chosen, which may be all."""

    step: int
    groups: tuple[TakenGroup, ...]
    oldest_version: int | None  # over all samples; None without any sampled token
    begun: tuple[int, ...] = ()  # groups of it that were begun before it was whole, all of those that were


class StalenessViolation(BugError):
    """A sample older than η reached the trainer. It is counted and alerted; its batch must not be trained."""

    def __init__(self, group: int, step: int, age: SampleAge) -> None:
        super().__init__(
            f"group {group} for step {step} holds a token of version {age.oldest_version}: "
            f"more than {age.max_staleness} versions old"
        )
        self.group, self.step, self.age = group, step, age


Ages = Callable[[TakenGroup], Iterable[SampleAge]]


def ages_from_meta(group: TakenGroup) -> list[SampleAge]:
    """Ages as the ledger states them beside the payloads."""
    return [SampleAge(meta.oldest_version, meta.max_staleness) for meta in group.metas]


def check_spans(group: TakenGroup, samples: Iterable[common.Sample]) -> tuple[int, ...]:
    """Refuse a group with a token older than the ledger states: a worker wrote both. Raises BugError.

    Returns its sampled tokens, the sum of their versions, the oldest, the last step for them and the highest bound.
    """
    found: list[tuple[int, int, int]] = []  # a version, how many tokens are of it, and their bound
    for index, meta, sample in zip(group.indices, group.metas, samples, strict=True):
        spans = [span for row in sample.sequences for span in row.spans if span.end > span.start]
        versions = [(version_of(span.policy_id), span.end - span.start, meta.max_staleness) for span in spans]
        if versions and min(versions)[0] < meta.oldest_version:
            raise BugError(
                f"sample {index} of group {group.group} holds a token of version {min(versions)[0]}, the ledger says "
                f"that its oldest is of version {meta.oldest_version}"
            )
        found += versions
    if not found:
        return ()
    due, bound = min(version + bound for version, _, bound in found), max(bound for _, _, bound in found)
    return sum(n for _, n, _ in found), sum(version * n for version, n, _ in found), min(found)[0], due, bound


class Consumer:
    """One trainer's life, from a checkpoint on. `served_version` is the controller's answer at attach, −1 for none."""

    def __init__(self, fence: int, state: TrainerState, policy: ConsumerPolicy, served_version: int = -1) -> None:
        self.fence = fence
        self.policy = replace(policy, max_steps=max(policy.max_steps, state.step))
        self.served_version = served_version
        self.state = state  # for a checkpoint taken now
        self.committed_state = state  # of the newest checkpoint
        self._begun: dict[int, TakenGroup] = {}  # of the next batch, before it is whole
        self._offered: Batch | None = None
        self._accepted = False
        self._final_published: int | None = None

    @property
    def version(self) -> int:
        """The policy version the trainer holds."""
        return self.state.step

    @property
    def finished(self) -> bool:
        """Whether the last step is trained. The final version and checkpoint may still be due."""
        return self.state.step >= self.policy.max_steps

    # ---- take

    def want(self) -> int | None:
        """Step whose batch is to be taken next; None while a batch is in work or when all is trained."""
        return None if self.finished or self._offered is not None else self.state.step

    def begin(self, step: int, groups: Sequence[TakenGroup], ages: Ages = ages_from_meta) -> Batch | None:
        """Takes over complete groups of the batch of `step` before it is whole, to begin with.

        Nothing is promised of them: `offer` tells whether its batch has them as they were. Raises as `offer`.
        """
        fresh = tuple(group for group in groups if group.complete and group.group not in self._begun)
        if self.want() != step or not fresh:
            return None
        versions = [age.oldest_version for group in fresh for age in self._checked(group, ages)]
        self._begun |= {group.group: group for group in fresh}
        return Batch(step, fresh, min(versions, default=None))

    @property
    def begun(self) -> frozenset[int]:
        """Groups that were begun before their batch was whole."""
        return frozenset(self._begun)

    def offer(self, groups: Sequence[TakenGroup], ages: Ages = ages_from_meta) -> Batch | None:
        """Takes over the batch that was taken, if it was there.

        Nothing may be left of it: then its step changes nothing. Raises `BugError` when it is no whole batch, and
        `StalenessViolation`.
        """
        if self.want() is None or not groups:
            return None
        if len({group.group for group in groups}) != len(groups) or len(groups) != self.policy.batch_groups:
            raise BugError(f"step {self.state.step} has the batch {[group.group for group in groups]}")
        complete = tuple(group for group in groups if group.complete)
        versions = [age.oldest_version for group in complete for age in self._checked(group, ages)]
        begun = sorted(self._begun) if all(group in complete for group in self._begun.values()) else ()
        self._offered = Batch(self.state.step, complete, min(versions, default=None), tuple(begun))
        self._accepted = False
        return self._offered

    def accept(self, batch: Batch, max_steps: int) -> bool:
        """The controller acknowledged `batch.step`: whether to train the batch.

        Not when the run has been shortened to end before it: then it is dropped.
        """
        if batch is not self._offered:  # shortened while the acknowledgement was on its way
            self.set_max_steps(max_steps)
            return False
        self._accepted = max_steps > batch.step
        if not self._accepted:
            self.drop()
        self.set_max_steps(max_steps)
        return self._accepted

    def drop(self) -> None:
        """Forgets everything taken and not trained: it will be taken again, as the ledger then has it."""
        self._offered, self._accepted = None, False

    def trained(self, batch: Batch) -> None:
        """The batch went into the model, or counts as such because its update was skipped."""
        if batch is not self._offered:
            raise BugError(f"the batch of step {batch.step} is not the one offered last")
        self.state = TrainerState(batch.step + 1)
        self._begun = {}
        self.drop()

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
        if self.state == self.committed_state:
            return False
        return requested or self.finished or self.state.step % self.policy.checkpoint_interval == 0

    def committed(self, state: TrainerState) -> None:
        """A checkpoint of `state` is on disk: only now may `commit(fence, state.step)` free its groups."""
        if state.step > self.committed_state.step:
            self.committed_state = state

    # ---- hot fields

    def set_max_steps(self, max_steps: int) -> None:
        """The job's new length. Less than what is trained, or acknowledged for training, means just that."""
        reached = self.state.step + (1 if self._offered is not None and self._accepted else 0)
        self.policy = replace(self.policy, max_steps=max(max_steps, reached))
        if self.finished:
            self.drop()

    # ---- shared pieces

    def _checked(self, group: TakenGroup, ages: Ages) -> Iterable[SampleAge]:
        if not group.payloads or len(set(group.indices)) != len(group.payloads):
            raise BugError(f"group {group.group} is complete with samples {group.indices}")
        if not set(group.indices) <= set(range(self.policy.group_size)):
            raise BugError(f"group {group.group} holds samples {group.indices} of {self.policy.group_size}")
        step = self.state.step
        checked = list(ages(group))
        for age in checked:
            if age.oldest_version < step - age.max_staleness:
                raise StalenessViolation(group.group, step, age)
        return checked
