"""Rules of boxes: whether the episodes under way can have one each."""

from __future__ import annotations

from areal.spec.job import RLJob
from areal.spec.rules import Facts, Severity, rule


@rule(
    "boxes-few",
    "spec.rollout.boxes.maxConcurrent",
    "Each sample under way can have a box: boxes.maxConcurrent ≥ maxConcurrentRollouts × groupSize.",
    fix="Raise rollout.boxes.maxConcurrent, or lower rollout.maxConcurrentRollouts.",
    cel=None,
    severity=Severity.WARNING,
)
def boxes_few(job: RLJob, facts: Facts) -> str | None:
    rollout, group = job.spec.rollout, job.spec.algorithm.group_size
    samples, boxes = rollout.max_concurrent_rollouts * group, rollout.boxes.max_concurrent
    if not boxes or boxes >= samples:
        return None
    return f"{samples} samples are under way at once, and {boxes} boxes: the others wait for room"


RULES = (boxes_few,)
