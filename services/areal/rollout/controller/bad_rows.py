"""Error-rate limit over a sliding window: the share of groups that their own row or the recipe's code failed.

One bad row costs its group and nothing else; when too many of the newest groups fail so, the run is asked to stop
rather than to train on what is left. Groups that the job turned down by its own choice (filtered, a workflow that
returned None) and faults of the infrastructure don't count. Owns no decision but that.
"""

from __future__ import annotations

from collections import deque

from areal.ledger.values import TombstoneReason
from areal.rollout.controller.groups import GroupVerdict
from areal.rollout.controller.streak import headline

WINDOW = 512  # newest groups: some steps of a small job, a part of one of a large job
LEAST = 128  # ended groups before a share means anything


class BadRows:
    """The newest groups that ended, trained or failed."""

    def __init__(self) -> None:
        self._failed: deque[bool] = deque(maxlen=WINDOW)
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
        """What is too much, when more than the share `limit` failed; empty when it isn't."""
        count = len(self._failed)
        if count < LEAST or self._bad <= limit * count:
            return ""
        return (
            f"{self._bad} of the newest {count} groups ({self._bad / count:.0%}) failed by their rows or by the recipe,"
            f" more than rollout.maxBadRowShare ({limit:.0%}) allows; the newest: {self._newest}"
        )

    def _count(self, *, failed: bool) -> None:
        if len(self._failed) == WINDOW:
            self._bad -= self._failed[0]
        self._failed.append(failed)
        self._bad += failed
