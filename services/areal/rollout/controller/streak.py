"""Circuit breakers of admission: groups in a row that ended untrained, and the share of bad rows in a sliding window.

Owns the count since the last complete group. Groups that were filtered or turned down may be the job's own choice, and
stall only at its limit. Failures (an exception, a hang, a deadline, infrastructure) pause admission exponentially and
stall much earlier; a few groups are still tried after each pause, so that the stall ends when its cause does.

One bad row costs its group and nothing else; when too many of the newest groups are failed by their own row or by the
recipe's code so that it can be no chance, the run is asked to stop rather than to train on what is left.
"""

import re
from collections import Counter, deque
from pathlib import Path

import areal
from areal.ledger.values import TombstoneReason
from areal.rollout.controller.groups import GroupVerdict
from areal.rollout.controller.settings import retry_pause_s
from areal.values.interval import wilson

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
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NAMED = re.compile(r"\.py:\d+\)$")
_OURS = str(Path(areal.__file__).parent)


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

    def ended(self, now: float, verdict: GroupVerdict, place: str = "") -> None:
        """A group ended untrained; `place` is its row's. One beyond the end of the run says nothing."""
        if verdict.reason == TombstoneReason.ENDED:
            return
        self._ended[verdict.reason] += 1
        self._newest = headline(verdict.detail, place)
        if verdict.chosen:
            return
        self._failed += 1
        if self._failed >= FAILED_TO_PAUSE and now >= self._until and self._probes <= 0:
            self._until = now + retry_pause_s(self._pauses)
            self._pauses += 1
            self._probes = _PROBES

    def admissible(self, now: float, limit: int, most: int) -> int:
        """Number of groups that may be admitted now, at most `most`; `limit` is that of `stall`."""
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


def headline(detail: str, place: str = "") -> str:
    """The first line of a tombstone's detail, with its row's place and the innermost frame that is the user's."""
    first = detail.partition("\n")[0].removeprefix("exception: ")[:_CHARACTERS]
    frames = [] if _NAMED.search(first) else _FRAME.findall(detail)
    users = [frame for frame in frames if not frame[0].startswith(_OURS)] or frames
    words = f"{first} ({Path(users[-1][0]).name}:{users[-1][1]})" if users else first
    words = f"{place}: {words}" if place else words
    return "".join(letter if letter.isprintable() else " " for letter in words)


WINDOW = 512  # newest groups that are looked at, of a small job; of a large one its newest batches
BATCHES = 4  # so many of them
LEAST = 8  # ended groups before a share means anything: two bad rows at a run's start stop nothing


class BadRows:
    """The newest groups that ended, trained or failed."""

    def __init__(self, batch_groups: int = 1) -> None:
        self._failed: deque[bool] = deque(maxlen=max(WINDOW, BATCHES * batch_groups))
        self._bad = 0
        self._newest = ""

    def completed(self) -> None:
        """A group will be trained."""
        self._count(failed=False)

    def ended(self, verdict: GroupVerdict, place: str = "") -> None:
        """A group ended untrained; `place` is its row's."""
        if verdict.reason == TombstoneReason.REJECTED and not verdict.chosen:
            self._newest = headline(verdict.detail, place)
            self._count(failed=True)

    def excess(self, limit: float) -> str:
        """Sentence on the bad rows, when surely more than the share `limit` fails; empty when not."""
        count = len(self._failed)
        if count < LEAST or not self._bad or wilson(self._bad / count, count)[0] <= limit:
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
