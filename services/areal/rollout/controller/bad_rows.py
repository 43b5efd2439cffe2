"""Error-rate limit over a sliding window: the share of groups that their own row or the recipe's code failed.

One bad row costs its group and nothing else; when too many of the newest groups fail so that it can be no chance, the
run is asked to stop rather than to train on what is left. Groups that the job turned down by its own choice (filtered,
a workflow that returned None) and faults of the infrastructure don't count. Owns no decision but that.
"""

from __future__ import annotations

import math
from collections import deque

from areal.ledger.values import TombstoneReason
from areal.rollout.controller.groups import GroupVerdict
from areal.rollout.controller.streak import headline

WINDOW = 512  # newest groups that are looked at, of a small job; of a large one its newest batches
BATCHES = 4  # so many of them
LEAST = 8  # ended groups before a share means anything: two bad rows at a run's start stop nothing
_Z = 1.959964  # of the normal distribution, for a bound at 95 %


class BadRows:
    """The newest groups that ended, trained or failed."""

    def __init__(self, batch_groups: int = 1) -> None:
        self._failed: deque[bool] = deque(maxlen=max(WINDOW, BATCHES * batch_groups))
        self._bad = 0
        self._newest = ""

    def completed(self) -> None:
        """A group will be trained."""
        self._count(failed=False)

    def ended(self, verdict: GroupVerdict) -> None:
        """A group ended untrained."""
        if verdict.reason == TombstoneReason.REJECTED and not verdict.chosen:
            self._newest = headline(verdict.detail)
            self._count(failed=True)

    def excess(self, limit: float) -> str:
        """What is too much, when surely more than the share `limit` fails; empty when it isn't."""
        count = len(self._failed)
        if count < LEAST or not self._bad or wilson_lower(self._bad, count) <= limit:
            return ""
        return (
            f"{self._bad} of the newest {count} groups ({self._bad / count:.0%}) failed by their rows or by the recipe,"
            f" more than rollout.maxBadRowShare ({limit:.0%}) allows; the newest: {self._newest}"
        )

    def _count(self, *, failed: bool) -> None:
        if len(self._failed) == self._failed.maxlen:
            self._bad -= self._failed[0]
        self._failed.append(failed)
        self._bad += failed


def wilson_lower(found: int, count: int) -> float:
    """The smallest share that goes with `found` of `count`, at 95 % (E. B. Wilson, 1927); never above found/count."""
    share, spread = found / count, _Z * _Z / count
    middle = share + spread / 2.0
    return (middle - math.sqrt(spread * (share * (1.0 - share) + spread / 4.0))) / (1.0 + spread)
