"""Progress of a run by the reports of its roles, and its deadline clocks: start, queue.

Owns which report speaks: the trainer's own, and the controller's once the trainer has stopped to answer. And what is
evidence of a step: that a process of the present epoch made one. A number says nothing: after a restart it is the
checkpoint's, and the report of a pod that has just died is still fresh. And which
clock runs when: the startup clock only while every pod is bound to a machine that answers, the queue clock otherwise.
Both start over at each start or resumption and stop to matter at the first step. Pure; what was waited is in the job's
state, so a successor continues to count.
"""

from dataclasses import replace

from areal_operator.operator.job_state import JobState, StepEvidence
from areal_operator.operator.observed import ControllerReport, Reports, TrainerProgress
from areal_operator.operator.times import FRESH_S, POLL_S


def speaker(reports: Reports, now: float) -> TrainerProgress | ControllerReport | None:
    """The report that speaks for the run; None when nobody does."""
    trainer, controller = reports.trainer, reports.controller
    if trainer is not None and (now - trainer.at > FRESH_S or (controller and controller.at - trainer.at > POLL_S)):
        trainer = None
    if controller is not None and now - controller.at > FRESH_S:
        controller = None
    return trainer or controller


def trained_out(state: JobState, reports: Reports, max_steps: int) -> JobState:
    """The state of a job whose trainer says that it is done: its last step may have been reported by nobody."""
    in_force = reports.controller.hot.max_steps if reports.controller is not None else max_steps
    if not in_force and reports.trainer is not None:  # a length given in epochs is the trainer's to know
        in_force = reports.trainer.max_steps
    return replace(state, step=max(state.step, in_force))


def stepped(state: JobState, reports: Reports, now: float) -> JobState:
    """The state with a newly reported step, and its time when there is evidence that it was made in this epoch."""
    report = speaker(reports, now)
    if report is None:
        return state
    if not state.members:  # of an epoch that is over
        return replace(state, step=max(state.step, report.step))
    known = state.evidence or StepEvidence(state.epoch)
    shown = report.evidence if isinstance(report, TrainerProgress) else None
    step = report.step
    if shown is None:  # who doesn't count what it made: each step above the first that it named in this epoch
        if known.epoch == state.epoch:
            step = max(state.step, step)  # a controller that starts anew names the journal's for a while
            shown = replace(known, made=known.made + step - state.step)
        else:
            shown = StepEvidence(state.epoch)
    if shown.epoch != state.epoch:
        return state  # the last word of a process that is gone
    made = shown.made > (known.made if replace(known, made=shown.made) == shown else 0)
    state = replace(state, step=step, evidence=shown)
    if not made:
        return state
    waiting_since = state.waiting_since if state.waiting_since is None else float(int(now))
    heard = now if report.since is None else report.since  # figures are written some seconds later
    return replace(
        state, step_at=float(int(heard)), fruitless=0, next_epoch_at=None, waited_s=0.0, waiting_since=waiting_since
    )


def kept_waiting(state: JobState, waits: bool, now: float) -> JobState:
    """The state with the time that pods have waited for nodes."""
    if waits and state.waiting_since is None:
        return replace(state, waiting_since=float(int(now)))
    if not waits and state.waiting_since is not None:
        whole = state.waited_s + max(0.0, float(int(now)) - state.waiting_since)
        return replace(state, waited_s=whole, waiting_since=None)
    return state


def waited_s(state: JobState, now: float) -> float:
    """Seconds that pods have waited for nodes since the job's start, resumption or last step."""
    open_s = now - state.waiting_since if state.waiting_since is not None else 0.0
    return state.waited_s + max(0.0, open_s)


def startup_s(state: JobState, now: float) -> float:
    """Seconds in which all pods could run since the job's start or resumption."""
    started = state.started_at if state.started_at is not None else now
    return max(0.0, now - started - waited_s(state, now))


def started_anew(state: JobState, now: float) -> JobState:
    """The state with the clocks of a job that starts or is resumed."""
    return replace(state, started_at=float(int(now)), waited_s=0.0, waiting_since=None)
