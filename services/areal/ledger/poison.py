"""Poison: what to do about a step that keeps crashing the trainer.

Owns the rule: twice is chance, the third time the micro-batches are halved, after that the largest group is proposed
for a tombstone. Pure: reads attempts from the evidence and answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from areal.ledger.evidence import Attempt, Evidence

HALVED_CRASHES = 3
"""A batch that just doesn't fit into memory gets one try with half of it."""


@dataclass(frozen=True, slots=True)
class Precaution:
    """How to go about a step."""

    step: int
    crashes: int  # in a row, with the same groups
    micro_batch_divisor: int = 1
    tombstone: int | None = None  # propose this group, before the first take


def precaution(evidence: Evidence, from_step: int) -> Precaution:
    """What a trainer that starts at `from_step` does about the step that crashed last.

    A later step than `from_step` may be the one: replaying from a checkpoint crashes on the way there, too.
    """
    trained = {(entry.step, entry.fence) for entry in evidence.entries}
    crashed = [a for a in evidence.attempts if (a.step, a.fence) not in trained and a.step >= from_step]
    if not crashed:
        return Precaution(from_step, 0)
    last = crashed[-1]
    finished_later = any(e.step == last.step and e.fence > last.fence for e in evidence.entries)
    if finished_later:
        return Precaution(from_step, 0)
    return _judge(last, _streak(crashed, last, evidence))


def _streak(crashed: Sequence[Attempt], last: Attempt, evidence: Evidence) -> int:
    """Crashes of the last attempt's step with the same groups, since anybody trained it."""
    since = max((e.fence for e in evidence.entries if e.step == last.step), default=0)
    same = [a for a in crashed if a.step == last.step and a.fence > since and set(a.groups) == set(last.groups)]
    return len({attempt.fence for attempt in same})


def _judge(last: Attempt, crashes: int) -> Precaution:
    if crashes < HALVED_CRASHES:
        return Precaution(last.step, crashes)
    if crashes == HALVED_CRASHES or not last.groups:
        return Precaution(last.step, crashes, micro_batch_divisor=2)
    largest = max(last.groups, key=lambda group: (last.groups[group], group))
    return Precaution(last.step, crashes, micro_batch_divisor=2, tombstone=largest)
