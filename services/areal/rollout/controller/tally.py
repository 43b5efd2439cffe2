"""Counts and means that status and metrics show. Owns no decision, except that a violated floor is counted as a bug."""

import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from areal.record.episode_ends import EpisodeEnd
from areal.rollout.contract.values import FailureKind, SampleDone
from areal.rollout.controller.groups import PromptGroup
from areal.rollout.controller.token_book import TokenBook

log = logging.getLogger(__name__)

_RECENT_SAMPLES = 512  # one step of the quickstart job


@dataclass(frozen=True, slots=True)
class GroupLife:
    """A group that was taken by `step`, or ended untrained for `reason`. Times are the core's clock; 0 is unknown."""

    group: int
    leased_at: float
    closed_at: float
    ended_at: float
    attempts: int
    step: int = -1
    reason: str = ""


class Tally:
    """What has happened since this controller started, and how episodes ended since the run did."""

    def __init__(self) -> None:
        self.closed: Counter[str] = Counter()  # "complete", "tombstoned"
        self.tombstones: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()  # episodes by `EpisodeEnd`, those of earlier controllers included
        self.tokens = TokenBook()
        self.violations = 0
        self.age_max = 0
        self.age_sum = 0
        self.age_count = 0
        self.durations_s: list[tuple[int, float]] = []  # since the shell last looked: group, first lease to closing
        self.lives: list[GroupLife] = []  # since the shell last looked
        self._sampled: deque[float] = deque(maxlen=_RECENT_SAMPLES)
        self._complete: deque[float] = deque(maxlen=1)

    def sampled(self, report: SampleDone, floor: int) -> None:
        """A sample arrived; one below its group's floor breaks a promise."""
        self.ends[EpisodeEnd.MASKED if report.masked else EpisodeEnd.COMPLETE] += 1
        self._sampled.append(report.reward)
        if report.oldest_version < floor:
            self.violations += 1
            log.error(
                "sample %d.%d holds a token of version %d, its floor is %d",
                report.group,
                report.index,
                report.oldest_version,
                floor,
            )

    def failed(self, kind: FailureKind) -> None:
        """An episode ended without a sample. A failure of no kind ends its group as one of the user's code does."""
        self.ends[EpisodeEnd(kind.value) if kind is not FailureKind.NONE else EpisodeEnd.EXCEPTION] += 1

    def lost(self, episodes: int) -> None:
        """So many episodes went with their worker."""
        if episodes:
            self.ends[EpisodeEnd.INFRA] += episodes

    def completed(self, group: PromptGroup, batch_groups: int) -> None:
        """A group will be trained."""
        self.closed["complete"] += 1
        if group.leased_at:
            self.durations_s.append((group.index, group.closed_at - group.leased_at))
        if self._complete.maxlen != batch_groups:
            self._complete = deque(self._complete, maxlen=batch_groups)
        if group.done:
            self._complete.append(sum(figures.reward for figures in group.done.values()) / len(group.done))

    def tombstoned(self, now: float, reason: str, group: PromptGroup | None) -> None:
        """A group ended untrained; None: another controller knew it."""
        self.closed["tombstoned"] += 1
        self.tombstones[reason] += 1
        if group is not None:
            self.lives.append(GroupLife(group.index, group.leased_at, now, now, group.attempt, reason=reason))

    def trained(self, now: float, groups: Iterable[tuple[int, PromptGroup]]) -> None:
        """Groups were taken by the step they come with."""
        for step, group in groups:
            self.lives.append(GroupLife(group.index, group.leased_at, group.closed_at, now, group.attempt, step))
            if group.done:
                age = max(0, step - min(figures.oldest_version for figures in group.done.values()))
                self.age_max = max(self.age_max, age)
                self.age_sum += age
                self.age_count += 1

    @property
    def age_mean(self) -> float:
        """Mean over taken groups of the age of their oldest token, in versions."""
        return self.age_sum / self.age_count if self.age_count else 0.0

    @property
    def reward_sampled(self) -> float:
        """Mean reward of the newest samples."""
        return sum(self._sampled) / len(self._sampled) if self._sampled else 0.0

    @property
    def reward_mean(self) -> float:
        """Mean reward of the newest complete groups, one batch of them."""
        return sum(self._complete) / len(self._complete) if self._complete else 0.0
