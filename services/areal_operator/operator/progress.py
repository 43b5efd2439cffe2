"""Progress of a run, by the reports of its roles.

Owns which report speaks: the trainer's own, and the controller's once the trainer has stopped to answer. A step is
reported when the number changes, also downwards: after a restart the trainers go on from their checkpoint. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from areal_operator.operator.memory import Memory
from areal_operator.operator.observed import Reports
from areal_operator.operator.times import FRESH_S, POLL_S


def reported_step(reports: Reports, now: float) -> int | None:
    """The step that the run is at; None when nobody says."""
    trainer, controller = reports.trainer, reports.controller
    if trainer is not None and (now - trainer.at > FRESH_S or (controller and controller.at - trainer.at > POLL_S)):
        trainer = None
    if controller is not None and now - controller.at > FRESH_S:
        controller = None
    report = trainer or controller
    return report.step if report is not None else None


def trained_out(memory: Memory, reports: Reports, max_steps: int) -> Memory:
    """The memory of a job whose trainer says that it is done: its last step may have been reported by nobody."""
    in_force = reports.controller.hot.max_steps if reports.controller is not None else max_steps
    if not in_force and reports.trainer is not None:  # a length given in epochs is the trainer's to know
        in_force = reports.trainer.max_steps
    return replace(memory, step=max(memory.step, in_force))


def stepped(memory: Memory, reports: Reports, now: float) -> Memory:
    """The memory with a newly reported step."""
    step = reported_step(reports, now)
    if step is None or step == memory.step:
        return memory
    made = step > memory.step and bool(memory.members)  # a lower one is where the trainers went on from
    memory = replace(memory, step=step, step_at=float(int(now)))
    if not made:
        return memory
    waiting_since = memory.waiting_since if memory.waiting_since is None else float(int(now))
    return replace(memory, fruitless=0, next_epoch_at=None, waited_s=0.0, waiting_since=waiting_since)
