"""Poison: what to do about a step that keeps crashing the trainer.

Owns the rule: twice is chance, the third time the micro-batches are halved, after that the largest group is proposed
for a tombstone. Only a trainer's own failures count: one that was preempted, stopped or lost with its node, or that a
service failed, says nothing about its batch. Pure: reads attempts and exits from the evidence and answers.
"""

import signal
from dataclasses import dataclass

from areal.errors import ExitCode
from areal.ledger.evidence import Evidence, Exit

HALVED_CRASHES = 3
"""A batch that just doesn't fit into memory gets one try with half of it."""

_OF_OTHERS = (ExitCode.DONE, ExitCode.DRAINED, ExitCode.INFRA, -signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL)
_OUT_OF_MEMORY = "OutOfMemoryError"
"""Of the device. A device that is full is nobody's bug (exit 75), but it was this batch that didn't fit."""


@dataclass(frozen=True, slots=True)
class Precaution:
    """How to go about a step."""

    step: int
    crashes: int  # of its own, with the same groups
    micro_batch_divisor: int = 1
    tombstone: int | None = None  # propose this group, before the first take


def own_failure(ended: Exit) -> bool:
    """Whether the trainer failed by itself, so that its batch may be what it died of."""
    return ended.error == _OUT_OF_MEMORY or ended.code not in _OF_OTHERS


def precaution(evidence: Evidence, from_step: int) -> Precaution:
    """Precaution of a trainer that starts at `from_step`, against the step that crashed last.

    A later step than `from_step` may be the one: replaying from a checkpoint crashes on the way there, too.
    """
    trained = {(entry.step, entry.fence) for entry in evidence.entries}
    failed = {ended.fence for ended in evidence.exits if own_failure(ended)}
    crashed = [
        a for a in evidence.attempts if a.fence in failed and (a.step, a.fence) not in trained and a.step >= from_step
    ]
    if not crashed:
        return Precaution(from_step, 0)
    last = crashed[-1]
    if any(e.step == last.step and e.fence > last.fence for e in evidence.entries):
        return Precaution(from_step, 0)
    # crashes of that step with the same groups, since anybody trained it
    since = max((e.fence for e in evidence.entries if e.step == last.step), default=0)
    same = [a for a in crashed if a.step == last.step and a.fence > since and set(a.groups) == set(last.groups)]
    crashes = len({attempt.fence for attempt in same})
    if crashes < HALVED_CRASHES:
        return Precaution(last.step, crashes)
    if crashes == HALVED_CRASHES or not last.groups:
        return Precaution(last.step, crashes, micro_batch_divisor=2)
    largest = max(last.groups, key=lambda group: (last.groups[group], group))
    return Precaution(last.step, crashes, micro_batch_divisor=2, tombstone=largest)
