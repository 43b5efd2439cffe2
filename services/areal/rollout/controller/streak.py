"""Circuit breaker of admission: counts groups in a row that ended untrained, slows admission down, names a stall.

Owns the count since the last complete group. Groups that were filtered or turned down may be the job's own choice, and
stall only at its limit. Failures (an exception, a hang, a deadline, infrastructure) pause admission exponentially and
stall much earlier; a few groups are still tried after each pause, so that the stall ends when its cause does.
"""

from __future__ import annotations

import re
from collections import Counter

from areal.ledger.values import TombstoneReason
from areal.rollout.controller.groups import GroupVerdict
from areal.rollout.controller.settings import retry_pause_s

FAILED_TO_PAUSE = 16  # a few bad rows beside each other are no pattern
FAILED_TO_STALL = 64
_PROBES = 16  # groups after each pause
_CHARACTERS = 300  # of a headline: what users raise may be long
_ENDINGS = {
    TombstoneReason.FILTERED: "were filtered",
    TombstoneReason.REJECTED: "were rejected",
    TombstoneReason.DEADLINE: "passed their deadline",
    TombstoneReason.POISON: "crashed the trainer",
    TombstoneReason.INFRA: "failed for want of infrastructure",
}
_FRAME = re.compile(r'File "(?:[^"]*/)?([^"/]+)", line (\d+)')


class Streak:
    """What happened since the last group that will be trained."""

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()  # by reason
        self._failed = 0
        self._newest = ""
        self._pauses = 0
        self._until = 0.0
        self._probes = 0  # left, after the pause

    def completed(self) -> None:
        """A group will be trained."""
        self._ended.clear()
        self._failed = self._pauses = 0

    def ended(self, now: float, verdict: GroupVerdict) -> None:
        """A group ended untrained. One beyond the end of the run says nothing."""
        if verdict.reason == TombstoneReason.ENDED:
            return
        self._ended[verdict.reason] += 1
        self._newest = headline(verdict.detail)
        if verdict.chosen:
            return
        self._failed += 1
        if self._failed >= FAILED_TO_PAUSE and now >= self._until and self._probes <= 0:
            self._until = now + retry_pause_s(self._pauses)
            self._pauses += 1
            self._probes = _PROBES

    def admissible(self, now: float, limit: int, most: int) -> int:
        """How many groups may be admitted now, at most `most`; `limit` is that of `stall`."""
        if limit and self._ended.total() >= limit:
            return 0
        if self._failed < FAILED_TO_PAUSE:
            return most
        return min(self._probes, most) if now >= self._until else 0

    def admitted(self, count: int) -> None:
        """So many groups were admitted just now."""
        self._probes -= count

    def stall(self, limit: int) -> str:
        """Why nothing is trained, when `limit` groups in a row were not (0: any number may be), or too many failed."""
        if self._failed < FAILED_TO_STALL and not (limit and self._ended.total() >= limit):
            return ""
        return self._words()

    @property
    def by_infrastructure(self) -> bool:
        """Whether any of the groups failed for want of infrastructure."""
        return TombstoneReason.INFRA in self._ended

    @property
    def bad_luck(self) -> str:
        """What happened to the newest groups, when so many in a row were not trained that it is no chance."""
        return self._words() if self._ended.total() >= FAILED_TO_PAUSE else ""

    def _words(self) -> str:
        ended = self._ended.total()
        each = ", ".join(f"{count} {reason}" for reason, count in sorted(self._ended.items()))
        how = (
            _ENDINGS[TombstoneReason(next(iter(self._ended)))]
            if len(self._ended) == 1
            else f"ended without training ({each})"
        )
        return f"{ended} groups in a row {how}: {self._newest}"


def headline(detail: str) -> str:
    """The first line of a tombstone's detail, with the place of its traceback's innermost frame."""
    first = detail.partition("\n")[0].removeprefix("exception: ")[:_CHARACTERS]
    frames = _FRAME.findall(detail)
    words = f"{first} ({frames[-1][0]}:{frames[-1][1]})" if frames else first
    return "".join(letter if letter.isprintable() else " " for letter in words)
