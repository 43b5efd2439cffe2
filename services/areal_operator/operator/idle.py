"""Sentence of what a job waits for: the first cause that fits, from a refusal to what the roles say. Pure.

Conditions say what holds and what doesn't; this says which of them holds up the others, and where. The controller's
words are judged by the table that `areal why` uses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from areal.observe.causes import IDLE_S, why
from areal.observe.live import Diagnosis, Live
from areal.plan.cluster_names import Role
from areal.spec.status import ConditionType, ProgressingReason, ScheduledReason, SuspendedReason

from areal_operator.operator.fault_owner import unbound
from areal_operator.operator.job_state import Condition
from areal_operator.operator.observed import Observation
from areal_operator.operator.times import FRESH_S

_PASSING = frozenset({"", "ContainerCreating", "PodInitializing"})  # Kubernetes' words for what every pod goes through
_HELD_UP = frozenset({ProgressingReason.STALLED, ProgressingReason.WAITING, ProgressingReason.BACKING_OFF})


@dataclass(frozen=True)
class _Look:
    seen: Observation
    found: Mapping[ConditionType, Condition]
    now: float

    def false(self, kind: ConditionType) -> Condition | None:
        condition = self.found[kind]
        return condition if condition.status != "True" else None


def idle_of(seen: Observation, found: Mapping[ConditionType, Condition], now: float) -> Diagnosis | None:
    """None while steps are trained, while none are wanted, and after the end.

    Args:
        found: the conditions that are about to be written.
    """
    if found[ConditionType.SCHEDULED].reason == ScheduledReason.QUOTA_PENDING:
        return _at(found[ConditionType.SCHEDULED])
    ended = found[ConditionType.PROGRESSING].reason == ProgressingReason.FINISHED
    if ended or found[ConditionType.SUSPENDED].status == "True":
        return None
    look = _Look(seen, found, now)
    causes = _ANY_TIME if found[ConditionType.PROGRESSING].status == "True" else (*_BEFORE, *_ANY_TIME, _trainer)
    return next((idle for cause in causes if (idle := cause(look)) is not None), None)


def _refused(look: _Look) -> Diagnosis | None:
    condition = look.false(ConditionType.ACCEPTED)
    return _at(condition) if condition is not None else None


def _suspending(look: _Look) -> Diagnosis | None:
    condition = look.found[ConditionType.SUSPENDED]
    return _at(condition, Role.TRAINER) if condition.reason != SuspendedReason.NOT_SUSPENDED else None


def _unplaced(look: _Look) -> Diagnosis | None:
    condition = look.false(ConditionType.SCHEDULED)
    if condition is None or not condition.message:
        return None
    named = condition.reason in (ScheduledReason.UNSCHEDULABLE, ScheduledReason.GATED)
    pod = unbound(look.seen) if named else None
    if pod is not None and pod.surge:  # training doesn't wait for it
        return None
    return _at(condition, pod.role if pod else "", pod.name if pod else "")


def _pod(look: _Look) -> Diagnosis | None:
    if look.seen.uncertified:  # a kubelet says why a pod can't have its Secret in events only
        return Diagnosis("CertificateMissing", look.seen.uncertified)
    for pod in look.seen.pods:
        if pod.waiting not in _PASSING and not pod.terminating:
            text = f"{pod.name}: {pod.waiting_message or pod.waiting}"
            return Diagnosis(pod.waiting, text, role=pod.role, pod=pod.name)
    return None


def _preparing(look: _Look) -> Diagnosis | None:
    condition = look.false(ConditionType.PREPARED)
    return _at(condition, Role.PREPARE) if condition else None


def _held_up(look: _Look) -> Diagnosis | None:
    condition = look.found[ConditionType.PROGRESSING]
    return _at(condition) if condition.reason in _HELD_UP else None


def _controller(look: _Look) -> Diagnosis | None:
    report, pods = look.seen.reports.controller, look.seen.of(Role.CONTROLLER)
    if report is None or not pods:
        return None
    if look.now - report.at > FRESH_S:
        return Diagnosis("role-silent", "it does not answer", role=Role.CONTROLLER, pod=pods[0].name)
    live = Live(
        at=report.at, pid=0, pid_began=0.0, step=report.step, max_steps=report.hot.max_steps, idle=report.idle,
        idle_s=IDLE_S, alive=True,
    )  # fmt: skip
    found = why(live)
    return None if found.cause == "none" else replace(found, role=Role.CONTROLLER, pod=pods[0].name)


def _trainer(look: _Look) -> Diagnosis | None:
    condition = look.false(ConditionType.TRAINER_READY) or look.found[ConditionType.PROGRESSING]
    return _at(condition, Role.TRAINER)


def _at(condition: Condition, role: str = "", pod: str = "") -> Diagnosis:
    """A condition as a cause."""
    return Diagnosis(condition.reason, condition.message or condition.reason, role=role, pod=pod)


_Cause = Callable[[_Look], Diagnosis | None]
_BEFORE: tuple[_Cause, ...] = (_refused, _suspending)
_ANY_TIME: tuple[_Cause, ...] = (_unplaced, _pod, _preparing, _held_up, _controller)
