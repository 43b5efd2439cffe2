"""How far a run is, by what its roles report.

Owns which report speaks: the trainer's own, else the controller's. A step is reported when the number changes, also
downwards: after a restart the trainers go on from their checkpoint. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from areal.operator.memory import Memory
from areal.operator.observed import Reports
from areal.operator.times import FRESH_S


def reported_step(reports: Reports, now: float) -> int | None:
    """The step that the run is at; None when nobody says."""
    for report in (reports.trainer, reports.controller):
        if report is not None and now - report.at <= FRESH_S:
            return report.step
    return None


def stepped(memory: Memory, reports: Reports, now: float) -> Memory:
    """The memory with a newly reported step."""
    step = reported_step(reports, now)
    if step is None or step == memory.step:
        return memory
    return replace(memory, step=step, step_at=float(int(now)))
