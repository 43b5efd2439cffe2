"""Ranks: a group's index minus the tombstones below it.

Owns the set of journalled tombstones with their reasons. Ranks only ever fall, because tombstones are never removed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping


class GroupRanks:
    """All tombstones of a job, sorted."""

    def __init__(self, tombstones: Mapping[int, str] | None = None) -> None:
        self._reasons: dict[int, str] = dict(tombstones or {})
        self._sorted: list[int] = sorted(self._reasons)
        self.counts: Counter[str] = Counter(self._reasons.values())

    def add(self, group: int, reason: str) -> bool:
        """Record a tombstone; False when the group had one."""
        if group in self._reasons:
            return False
        self._reasons[group] = reason
        self.counts[reason] += 1
        insort(self._sorted, group)
        return True

    def reason(self, group: int) -> str | None:
        """Why the group ended untrained, or None."""
        return self._reasons.get(group)

    def below(self, group: int) -> int:
        """How many tombstones lie below `group`."""
        return bisect_left(self._sorted, group)

    def rank(self, group: int) -> int:
        """The position of `group` among those that are trained."""
        return group - self.below(group)

    def between(self, start: int, stop: int) -> list[int]:
        """Tombstoned groups in [start, stop)."""
        return self._sorted[bisect_left(self._sorted, start) : bisect_left(self._sorted, stop)]

    @property
    def last(self) -> int:
        """The highest tombstoned group, -1 without any."""
        return self._sorted[-1] if self._sorted else -1

    def __contains__(self, group: object) -> bool:
        return group in self._reasons

    def __len__(self) -> int:
        return len(self._sorted)
