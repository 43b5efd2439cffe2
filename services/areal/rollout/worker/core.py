"""State machine of a worker: groups in work, samples made, failures to report, evaluation rows.

Pure.

It is told what happened, with the time, and answers what to do. Promises: a sample once made is not made again, and is
kept until a trainer's checkpoint holds its group; everything the controller must know is said again on every new
stream; a revoked group's work stops, but what was made of it is kept, because a group is also revoked when it is whole.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from areal.ledger.values import AddOutcome, AddResult, NewSample, SampleMeta
from areal.record.episode_ends import TokenFate
from areal.rollout.contract import values

EARLY_S = 1.0  # a worker ends late samples a little before the controller counts what is there
SHORT_S = 10.0  # deadlines so short that a second matters are kept to the letter
EVALUATIONS_KEPT = 2_048  # results told again to a controller that lost them
WHOLE_ENOUGH = 2  # samples of a group that give an advantage


@dataclass(frozen=True, slots=True)
class StartEpisode:
    """Run episode `index` of a held group."""

    group: int
    index: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopGroup:
    """End the episodes of a group; nobody waits for them any more."""

    group: int


@dataclass(frozen=True, slots=True)
class StartEvaluation:
    """Run one evaluation row."""

    grant: values.EvaluationGrant


Action: TypeAlias = StartEpisode | StopGroup | StartEvaluation


@dataclass(frozen=True, slots=True)
class GroupExpiry:
    """A group's time is over for these episodes. `keep_partial` says that the group closes complete with them."""

    group: int
    indices: tuple[int, ...]
    keep_partial: bool


@dataclass(slots=True)
class HeldGroup:
    """A leased group."""

    grant: values.Grant
    time_left_s: float
    working: set[int] = field(default_factory=set)
    refused: bool = False  # the ledger would not take a sample: the group is given back, in case it is leased rightly


@dataclass(slots=True)
class HeldSample:
    """A sample that was made. `stored` is the meta that counts once the ledger has it."""

    sample: NewSample
    stored: SampleMeta | None = None
    counted: bool = False  # its tokens are no longer this worker's: the ledger had it, or nobody needs it


class WorkerCore:
    """State of one worker process."""

    def __init__(self) -> None:
        self.groups: dict[int, HeldGroup] = {}
        self.samples: dict[int, dict[int, HeldSample]] = {}
        self.failures: dict[tuple[int, int], values.SampleFailure] = {}
        self.fence = 0
        self.committed = 0
        self.resent_total = 0
        self.duplicates_total = 0
        self.token_fates: Counter[str] = Counter()  # of tokens in no sample that the ledger had
        self.unstored_tokens = 0
        self._to_store: dict[tuple[int, int], NewSample] = {}
        self._done: dict[tuple[int, int], values.SampleDone] = {}  # not told on this stream yet
        self._failed: list[values.SampleFailure] = []
        self._released: list[int] = []
        self._evaluating: set[tuple[str, int, int]] = set()
        self._evaluated: OrderedDict[tuple[str, int, int], values.EvaluationAnswer] = OrderedDict()
        self._new_evaluated: list[values.EvaluationAnswer] = []
        self._ticked: float | None = None

    # ---- orders of the controller

    def hears(self, fence: int) -> bool:
        """Whether orders under this controller fence still count."""
        if fence < self.fence:
            return False
        self.fence = fence
        return True

    def grant(self, grant: values.Grant) -> list[Action]:
        """A lease. Samples already made are stored and told again instead of being made again, if young enough."""
        held = self.groups.get(grant.group)
        if held is None:
            held = self.groups[grant.group] = HeldGroup(grant, grant.deadline_s)
        else:
            held.grant, held.time_left_s = grant, grant.deadline_s
        actions: list[Action] = []
        made = self.samples.get(grant.group, {})
        for index in grant.missing:
            if index in held.working:
                continue
            self.failures.pop((grant.group, index), None)
            sample = made.get(index)
            if sample is not None and sample.sample.meta.oldest_version >= grant.floor:
                self._store(sample)
                continue
            if (stale := made.pop(index, None)) is not None:
                self._count(stale, TokenFate.STALE)
            self._to_store.pop((grant.group, index), None)
            held.working.add(index)
            actions.append(StartEpisode(grant.group, index, grant.attempt))
        return actions

    def revoke(self, group: int) -> list[Action]:
        """Stop work on a group. What was made of it stays."""
        held = self.groups.pop(group, None)
        for key in [key for key in self.failures if key[0] == group]:
            del self.failures[key]
        self._failed = [failure for failure in self._failed if failure.group != group]
        return [StopGroup(group)] if held is not None and held.working else []

    def commit(self, group: int) -> None:
        """A checkpoint holds every group below."""
        self.committed = group
        for index in [g for g in self.samples if g < group]:
            for i, held in self.samples.pop(index).items():
                self._count(held, TokenFate.ABORTED)
                self._to_store.pop((index, i), None)
        for key in [key for key in self.failures if key[0] < group]:
            del self.failures[key]
        self._done = {key: done for key, done in self._done.items() if key[0] >= group}

    def resend(self) -> None:
        """The ledger lost data: add every kept sample again, and tell none as done before."""
        self._done.clear()
        for made in self.samples.values():
            for sample in made.values():
                self.resent_total += 1
                self._store(sample)

    def grant_evaluation(self, grant: values.EvaluationGrant) -> list[Action]:
        """An evaluation row. A result that is known is told again; a row in work stays so."""
        key = (grant.evaluation_id, grant.row, grant.sample)
        known = self._evaluated.get(key)
        if known is not None:
            self._new_evaluated.append(known)
        elif key not in self._evaluating:
            self._evaluating.add(key)
            return [StartEvaluation(grant)]
        return []

    def release(self) -> list[Action]:
        """The worker drains: give every group back."""
        actions: list[Action] = [StopGroup(group) for group, held in self.groups.items() if held.working]
        self._released += self.groups
        self.groups.clear()
        self._evaluating.clear()
        return actions

    # ---- what episodes and the ledger did

    def wants(self, group: int, index: int) -> bool:
        """Whether somebody waits for this episode."""
        held = self.groups.get(group)
        return held is not None and index in held.working

    def made(self, sample: NewSample) -> None:
        """An episode ended well."""
        if not self.wants(sample.group, sample.index):
            return
        self.groups[sample.group].working.discard(sample.index)
        held = self.samples.setdefault(sample.group, {})[sample.index] = HeldSample(sample)
        self.unstored_tokens += sample.meta.sampled
        self._store(held)

    def failed(self, failure: values.SampleFailure) -> None:
        """An episode ended without a sample."""
        if not self.wants(failure.group, failure.index):
            return
        self.groups[failure.group].working.discard(failure.index)
        self.failures[failure.group, failure.index] = failure
        self._failed.append(failure)
        self._forget_if_idle(failure.group)

    def evaluated(self, result: values.EvaluationAnswer) -> None:
        """An evaluation row ended. Only a result that trying again can't change is remembered."""
        key = (result.evaluation_id, result.row, result.sample)
        self._evaluating.discard(key)
        self._new_evaluated.append(result)
        if result.kind is values.FailureKind.INFRA:
            return
        self._evaluated[key] = result
        if len(self._evaluated) > EVALUATIONS_KEPT:
            self._evaluated.popitem(last=False)

    def take_to_store(self, limit: int) -> list[NewSample]:
        """The next samples to add to the ledger; each is answered by `stored`, or comes back by `not_stored`."""
        keys = list(islice(self._to_store, limit))
        return [self._to_store.pop(key) for key in keys]

    def not_stored(self, samples: Iterable[NewSample]) -> None:
        """The ledger is away: these wait for it."""
        for sample in samples:
            held = self.samples.get(sample.group, {}).get(sample.index)
            if held is not None:
                self._to_store.setdefault((sample.group, sample.index), held.sample)

    def stored(self, sample: NewSample, result: AddResult) -> None:
        """The ledger has it, had it, or needs it no more."""
        self.duplicates_total += result.outcome is AddOutcome.DUPLICATE
        held = self.samples.get(sample.group, {}).get(sample.index)
        if result.outcome is AddOutcome.FINISHED and result.stored is None:  # nobody needs it any more, says the ledger
            if (refused := self.samples.get(sample.group, {}).pop(sample.index, None)) is not None:
                self._count(refused, TokenFate.ABORTED)
            if sample.group in self.groups:
                self.groups[sample.group].refused = True
            self._forget_if_idle(sample.group)
            return
        meta = result.stored or sample.meta
        if held is not None:
            held.stored = meta
            self._count(held)
        self._done[sample.group, sample.index] = values.SampleDone.of(sample.group, sample.index, meta)
        self._forget_if_idle(sample.group)

    def tick(self, now: float, can_serve: Callable[[int], bool]) -> list[GroupExpiry]:
        """Time passed. A group's time runs only while some server may serve it; returns groups whose time is over."""
        seconds = 0.0 if self._ticked is None else now - self._ticked
        self._ticked = now
        floors: dict[int, bool] = {}
        expired = []
        for group, held in self.groups.items():
            if not held.working:
                continue
            served = floors.get(held.grant.floor)
            if served is None:
                served = floors[held.grant.floor] = can_serve(held.grant.floor)
            if served:
                held.time_left_s -= seconds
            early = EARLY_S if held.grant.deadline_s > SHORT_S else 0.0
            if held.time_left_s <= early:
                whole = held.grant.group_size - len(held.working)
                expired.append(GroupExpiry(group, tuple(sorted(held.working)), whole >= WHOLE_ENOUGH))
        return expired

    # ---- what the controller is told

    @property
    def storing(self) -> bool:
        """Whether samples wait to be added to the ledger."""
        return bool(self._to_store)

    @property
    def has_news(self) -> bool:
        """Whether there is something to report before the next beat."""
        return bool(self._done or self._failed or self._released or self._new_evaluated)

    def hello(self, has_tokens: Callable[[int], bool]) -> values.WorkReport:
        """For a new stream: everything that the controller may not know, all over again."""
        self._done.clear()
        self._failed.clear()
        self._new_evaluated.clear()
        done = tuple(
            values.SampleDone.of(group, index, sample.stored)
            for group, made in self.samples.items()
            for index, sample in made.items()
            if sample.stored is not None
        )
        return values.WorkReport(
            done=done,
            failures=tuple(self.failures.values()),
            evaluated=tuple(self._evaluated.values()),
            released=tuple(self._take_released()),
            held=tuple(
                self._held(group, held, has_tokens) for group, held in self.groups.items() if self._in_work(group)
            ),
        )

    def report(self) -> values.WorkReport:
        """News since the last message of this stream."""
        done, self._done = tuple(self._done.values()), {}
        failures, self._failed = tuple(self._failed), []
        evaluated, self._new_evaluated = tuple(self._new_evaluated), []
        return values.WorkReport(
            done=done, failures=failures, evaluated=evaluated, released=tuple(self._take_released())
        )

    # ---- how

    def _count(self, held: HeldSample, fate: TokenFate | None = None) -> None:
        """Its tokens have this fate; None: the controller counts them, with the group."""
        if not held.counted:
            held.counted = True
            self.unstored_tokens -= held.sample.meta.sampled
            self.token_fates.update({fate: held.sample.meta.sampled} if fate is not None else {})

    def _store(self, sample: HeldSample) -> None:
        sample.stored = None
        self._to_store[sample.sample.group, sample.sample.index] = sample.sample

    def _in_work(self, group: int) -> list[int]:
        """Episodes that run, and samples that the ledger doesn't have yet."""
        waiting = [index for index, sample in self.samples.get(group, {}).items() if sample.stored is None]
        return sorted({*self.groups[group].working, *waiting})

    def _held(self, group: int, held: HeldGroup, has_tokens: Callable[[int], bool]) -> values.GroupInHand:
        tokens = bool(self.samples.get(group)) or has_tokens(group)
        return values.GroupInHand(
            group, held.grant.attempt, tuple(self._in_work(group)), held.grant.max_staleness, tokens, held.grant.floor
        )

    def _forget_if_idle(self, group: int) -> None:
        if group not in self.groups or self._in_work(group):
            return
        held = self.groups.pop(group)
        if held.refused:
            self._released.append(group)

    def _take_released(self) -> list[int]:
        released, self._released = self._released, []
        return released
