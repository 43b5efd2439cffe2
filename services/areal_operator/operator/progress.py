"""Progress of a run by the reports of its roles, and its deadline clocks: start, queue.

Owns which report speaks: the trainer's own, and the controller's once the trainer has stopped to answer. A step is
reported when the number changes, also downwards: after a restart the trainers go on from their checkpoint. And which
clock runs when: the startup clock only while every pod is bound to a machine that answers, the queue clock otherwise.
Both start over at each start or resumption and stop to matter at the first step. Pure; what was waited is in the job's
state, so a successor continues to count.
"""

from dataclasses import replace

from areal_operator.operator.job_state import JobState
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


def trained_out(state: JobState, reports: Reports, max_steps: int) -> JobState:
    """The state of a job whose trainer says that it is done: its last step may have been reported by nobody."""
    in_force = reports.controller.hot.max_steps if reports.controller is not None else max_steps
    if not in_force and reports.trainer is not None:  # a length given in epochs is the trainer's to know
        in_force = reports.trainer.max_steps
    return replace(state, step=max(state.step, in_force))


def stepped(state: JobState, reports: Reports, now: float) -> JobState:
    """The state with a newly reported step."""
    step = reported_step(reports, now)
    if step is None or step == state.step:
        return state
    made = step > state.step and bool(state.members)  # a lower one is where the trainers went on from
    state = replace(state, step=step, step_at=float(int(now)))
    if not made:
        return state
    waiting_since = state.waiting_since if state.waiting_since is None else float(int(now))
    return replace(state, fruitless=0, next_epoch_at=None, waited_s=0.0, waiting_since=waiting_since)


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
