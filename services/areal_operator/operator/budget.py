"""Restart budget and back-off of a job's trainers.

Owns what a restart costs, what refunds it and how long the next epoch waits. A restart counts only when its incident
is the job's own; a new checkpoint refunds everything that was spent, and so does the end of the restart window. Epochs
that end without a step are separated by an exponential pause. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from areal.spec.cluster import FailurePolicy

from areal_operator.operator.failure_policy import FailureAction, Incident, Ruling, kept
from areal_operator.operator.job_state import JobState

FIRST_PAUSE_S = 10.0
"""After the first epoch without a step: long enough for a peer or a mount to come back."""

LONGEST_PAUSE_S = 300.0
"""A repaired cluster is noticed within five minutes."""


@dataclass(frozen=True)
class BudgetCharge:
    """A state with an incident dealt with. `exhausted`: one counted restart more than the policy allows."""

    state: JobState
    exhausted: bool


def charge(state: JobState, incident: Incident, ruling: Ruling, policy: FailurePolicy, now: float) -> BudgetCharge:
    """Deal with an incident: record it, and spend a restart where the ruling counts it."""
    state = _window(state, policy, now)
    # An uncounted restart of another role's pod is the cluster's business, not an attempt of the job.
    restarts = ruling.action is not FailureAction.FAIL_JOB and (
        ruling.action is FailureAction.RESTART_TRAINER or ruling.counted
    )
    costs = restarts and ruling.counted
    exhausted = costs and state.counted >= policy.max_restarts
    if exhausted:
        ruling = replace(ruling, action=FailureAction.FAIL_JOB)
        restarts = costs = False
    since = state.counted_since
    if costs and state.counted == 0:
        since = float(int(now))
    state = replace(
        state,
        restarts=state.restarts + restarts,
        counted=state.counted + costs,
        counted_since=since,
        failures=kept((*state.failures, incident.failure(ruling, state))),
    )
    return BudgetCharge(state, exhausted)


def refunded(state: JobState, checkpoint_step: int) -> JobState:
    """The state after a checkpoint was reported: a new one refunds all restarts."""
    if checkpoint_step <= state.checkpoint_step:
        return state
    return replace(state, checkpoint_step=checkpoint_step, counted=0, counted_since=None)


def epoch_over(state: JobState, now: float) -> JobState:
    """The state after an incident ended the epoch: the next one waits, the longer the more epochs made no step."""
    pause_s = pause_after(state.fruitless)
    return replace(
        state,
        members=(),
        fruitless=state.fruitless + 1,
        next_epoch_at=float(int(now) + int(pause_s)) if pause_s else None,
    )


def pause_after(fruitless: int) -> float:
    """Seconds until the next epoch, given how many ended without a step before this one: 0, 10, 20, 40 … 300."""
    return 0.0 if fruitless == 0 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(fruitless - 1, 16))


def _window(state: JobState, policy: FailurePolicy, now: float) -> JobState:
    """The state with the count of the window that `now` is in."""
    since = state.counted_since
    if since is None or now < since + policy.restart_window_seconds:
        return state
    return replace(state, counted=0, counted_since=None)
