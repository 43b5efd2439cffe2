"""Failure policy: which action an incident leads to, and what a restart of the trainers costs and waits.

Owns the choice of the rule, the choice of the incident that speaks for a gang, and that an incident is dealt with
once however often it is seen. The failures in the status are the record of that: they are the newest ones by time, so
whatever is not among them and older than all of them has been dealt with.

A restart counts only when its incident is the job's own; a new checkpoint refunds everything that was spent, and so
does the end of the restart window. Epochs that end without a step are separated by an exponential pause. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from areal.errors import Cause, ExitCode
from areal.plan.cluster_names import Role
from areal.plan.role_specs import batch_jobs
from areal.processes.exits import SIGNALLED, cause_in, classify
from areal.spec.cluster import FailurePolicy, FailureRule
from areal.spec.status import FAILURES_KEPT

from areal_operator.operator.fault_owner import FaultOwner, owner_of
from areal_operator.operator.job_state import JobFailure, JobState
from areal_operator.operator.observed import Pod

HOPELESS = (ExitCode.CONFIG, ExitCode.DATA, ExitCode.BUG)  # A start with the same job file would end the same way


def hopeless(code: int | None, *, worked: bool) -> bool:
    """Whether no restart helps. A configuration with which steps were trained is no user's mistake any more."""
    return code in HOPELESS and not (worked and code == ExitCode.CONFIG)


STALLED = "Stalled"  # The reason of the failure that is no process's end: nothing happened for too long

_CAUSES = {"OOMKilled": Cause.NO_MEMORY, STALLED: Cause.STALLED}


class FailureAction(StrEnum):
    """What a failure leads to."""

    RESTART_TRAINER = "RestartTrainer"
    RESTART_POD = "RestartPod"
    FAIL_JOB = "FailJob"


@dataclass(frozen=True)
class Incident:
    """Something went wrong, before any rule has spoken. `at` is in whole seconds, as the status keeps it."""

    role: Role
    pod: str
    at: float
    reason: str
    message: str = ""
    exit_code: int | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)  # type → status, of the pod
    node: str = ""

    @classmethod
    def of(cls, pod: Pod, at: float, reason: str, message: str, code: int | None = None) -> "Incident":
        """Incident of a pod, whose conditions may say whose it is."""
        conditions = {name: condition.status for name, condition in pod.conditions.items()}
        return cls(pod.role, pod.name, at, reason, message, code, conditions, pod.node)

    @property
    def owner(self) -> FaultOwner:
        """Whose incident it is."""
        return owner_of(self.role, self.reason, self.conditions)

    @property
    def cause(self) -> Cause:
        """What the process named, else what Kubernetes or the exit code tell."""
        if named := cause_in(self.message):
            return named
        if self.reason in _CAUSES or self.exit_code is None:
            return _CAUSES.get(self.reason, Cause.INFRA)
        signalled = self.exit_code > SIGNALLED
        return classify(SIGNALLED - self.exit_code if signalled else self.exit_code).cause

    def failure(self, ruling: "Ruling", state: JobState) -> JobFailure:
        """The incident as the status keeps it."""
        return JobFailure(
            at=self.at, role=self.role.value, pod=self.pod, exit_code=self.exit_code, reason=self.reason,
            rule=ruling.rule, action=ruling.action.value, step=state.step, epoch=state.epoch,
            owner=self.owner.value, cause=self.cause.value, node=self.node,
            counted=ruling.counted and ruling.action is not FailureAction.FAIL_JOB,
        )  # fmt: skip


@dataclass(frozen=True)
class Ruling:
    """What a rule says about an incident."""

    action: FailureAction
    counted: bool
    rule: str = ""  # "" is no rule of the job's: the default


def judge(incident: Incident, policy: FailurePolicy, *, worked: bool = False) -> Ruling:
    """The first rule that matches decides.

    Without one, exit codes that another try can't change fail the job, a trainer's failure restarts the trainers, and
    any other role's failure restarts its pod. Only incidents of the job's own count, and of other roles only the Jobs
    that prepare and finish: their own retries are behind them. `worked`: a step was trained before.
    """
    for rule in policy.rules:
        if _matches(rule, incident):
            return Ruling(FailureAction(rule.action), rule.count_towards_max, rule.name)
    if hopeless(incident.exit_code, worked=worked):
        return Ruling(FailureAction.FAIL_JOB, counted=True)
    own = incident.owner is FaultOwner.JOB
    if incident.role is Role.TRAINER:
        return Ruling(FailureAction.RESTART_TRAINER, counted=own)
    return Ruling(FailureAction.RESTART_POD, counted=own and incident.role in batch_jobs())


def _matches(rule: FailureRule, incident: Incident) -> bool:
    if rule.roles and incident.role.value not in rule.roles:
        return False
    if rule.on_exit_codes is not None:
        if incident.exit_code is None or incident.exit_code == ExitCode.DONE:
            return False
        if (incident.exit_code in rule.on_exit_codes.values) != (rule.on_exit_codes.operator == "In"):
            return False
    wanted = rule.on_pod_conditions
    return not wanted or any(incident.conditions.get(condition.type) == condition.status for condition in wanted)


def worst(incidents: Sequence[Incident], policy: FailurePolicy, *, worked: bool = False) -> tuple[Incident, Ruling]:
    """The incident that speaks for a gang, whose members fall together, and its ruling.

    What fails the job goes first. Then an incident on which one of the job's rules spoke, in the order of the rules: a
    disrupted pod's peers die of its absence, and it is the disruption that the rule is about. For the same reason an
    incident of others goes before the job's own. Then one that is not the plain 1 of a process whose peers are gone.
    Then the earliest.
    """
    order = {rule.name: place for place, rule in enumerate(policy.rules)}
    judged = [(incident, judge(incident, policy, worked=worked)) for incident in incidents]

    def weight(pair: tuple[Incident, Ruling]) -> tuple[bool, int, bool, bool, float]:
        incident, ruling = pair
        harmless = ruling.action is not FailureAction.FAIL_JOB
        own = incident.owner is FaultOwner.JOB
        return harmless, order.get(ruling.rule, len(order)), own, incident.exit_code == 1, incident.at

    return min(judged, key=weight)


def kept(failures: Iterable[JobFailure]) -> tuple[JobFailure, ...]:
    """The newest failures, oldest first; among them always the trainers' newest and the other roles' newest.

    So one part of the job that fails often can't wash the other's last failure out.
    """
    newest_first = sorted(failures, reverse=True)
    found = newest_first[:FAILURES_KEPT]
    for trainers in (True, False):
        last = next((failure for failure in newest_first if _of_trainer(failure) is trainers), None)
        if last is not None and last not in found:
            found[-1] = last  # all that were kept are of the other kind
    return tuple(sorted(found))


def dealt_with(incident: Incident, failures: Sequence[JobFailure]) -> bool:
    """Whether an incident of another role than the trainer is in the record, or so old that it was once.

    A tie with the oldest kept one counts as dealt with: better not to count one than to count one twice.
    """
    others = [failure for failure in failures if not _of_trainer(failure)]
    if any(
        (f.at, f.role, f.pod, f.reason, f.exit_code)
        == (incident.at, incident.role.value, incident.pod, incident.reason, incident.exit_code)
        for f in others
    ):
        return True
    return len(failures) >= FAILURES_KEPT and bool(others) and incident.at <= others[0].at


def _of_trainer(failure: JobFailure) -> bool:
    return failure.role == Role.TRAINER.value


def shell_code(code: int) -> int:
    """An exit code as a container's: a launcher reports a child that signal 9 killed as -9, Kubernetes as 137."""
    return SIGNALLED - code if code < 0 else code


FIRST_PAUSE_S = 10.0  # After the first epoch without a step: long enough for a peer or a mount to come back

LONGEST_PAUSE_S = 300.0  # A repaired cluster is noticed within five minutes


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


def dissolved(state: JobState, incident: Incident) -> JobState:
    """The state after an epoch ended that nothing of the job's ended: it is on record, and costs and waits nothing."""
    failure = incident.failure(Ruling(FailureAction.RESTART_TRAINER, counted=False), state)
    return replace(state, members=(), failures=kept((*state.failures, failure)))


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
