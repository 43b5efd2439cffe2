"""One prompt group as the controller sees it, and the tombstones of all.

Owns the group's phase, its floor and deadline, and what is known of its samples. Moves only forward: open → decided →
closing → closed, except that a group whose samples were lost opens again.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from areal.ledger.values import SampleMeta
from areal.rollout.contract.values import SampleDone

HELD = math.inf  # `not_before` of a group that waits for a scan: its samples may be in the ledger without our knowing


class GroupPhase(Enum):
    """Where a group is on its way."""

    OPEN = "open"  # admitted; leased when it has a worker; full when it misses nothing
    DECIDED = "decided"  # a tombstone that is not in the journal yet
    CLOSING = "closing"  # the ledger was told
    CLOSED = "closed"  # the ledger agreed: complete


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """How a group is to end."""

    reason: str
    detail: str = ""
    chosen: bool = False  # the job turned the group down; nothing failed


@dataclass(slots=True)
class PromptGroup:
    """Admission index `index`; `done` maps sample indices to their figures."""

    index: int
    phase: GroupPhase = GroupPhase.OPEN
    verdict: GroupVerdict | None = None  # decided, or held back while the trainer has the group in hand
    done: dict[int, SampleDone | SampleMeta] = field(default_factory=dict)
    worker: str = ""  # holder of the lease
    working: set[int] = field(default_factory=set)  # samples in work there
    attempt: int = 0
    due: int | None = None  # the last step that may train it; None until it is granted
    floor: int = 0  # the oldest version that may make a token of it
    staleness_bound: int = 0  # its own, since it was granted
    not_before: float = 0.0
    spent_s: float = 0.0  # of its deadline
    infra_tries: int = 0
    infra_since: float = 0.0
    tried_by: str = ""  # the worker that keeps what a failed try drew
    leased_at: float = 0.0
    closed_at: float = 0.0
    short: bool = False  # closes with the samples it has

    def unassigned(self, group_size: int) -> tuple[int, ...]:
        """Samples that nobody makes and nobody made."""
        if len(self.working) == group_size or len(self.done.keys() | self.working) == group_size:
            return ()
        return tuple(i for i in range(group_size) if i not in self.done and i not in self.working)

    def full(self, group_size: int) -> bool:
        """Whether every sample is in the ledger."""
        return len(self.done) >= group_size

    @property
    def made_due(self) -> int:
        """The last step that may train the samples that it has."""
        return min(figures.oldest_version + figures.max_staleness for figures in self.done.values())

    def by_urgency(self) -> tuple[float, int]:
        """Its place among the groups that are to be made: by deadline, then in admission order."""
        return (math.inf if self.due is None else self.due, self.index)

    def release(self) -> None:
        """Nobody holds it any more; what was not stored is lost."""
        self.worker = ""
        self.working.clear()

    def passes(self, score: float) -> tuple[int, int]:
        """Number of its samples that earned at least `score`, and of those scored at all."""
        scored = [figures.reward for figures in self.done.values() if not figures.masked]
        return sum(reward >= score for reward in scored), len(scored)

    def same_rewards(self) -> bool:
        """Whether all samples that are trained earned the same, so that the group's advantages are zero.

        A sample that its deadline cut off is masked and was never scored: its reward of 0 hides nothing.
        """
        return len({figures.reward for figures in self.done.values() if not figures.masked}) <= 1


class GroupTombstones:
    """All tombstones of a job."""

    def __init__(self, tombstones: Mapping[int, str] | None = None) -> None:
        self._reasons: dict[int, str] = dict(tombstones or {})
        self.counts: Counter[str] = Counter(self._reasons.values())

    def add(self, group: int, reason: str) -> bool:
        """Record a tombstone; False when the group had one."""
        if group in self._reasons:
            return False
        self._reasons[group] = reason
        self.counts[reason] += 1
        return True

    def reason(self, group: int) -> str | None:
        """Why the group ended untrained, or None."""
        return self._reasons.get(group)

    @property
    def last(self) -> int:
        """The highest tombstoned group, -1 without any."""
        return max(self._reasons, default=-1)

    def __contains__(self, group: object) -> bool:
        return group in self._reasons

    def __len__(self) -> int:
        return len(self._reasons)
