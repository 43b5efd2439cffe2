"""Rules of the operator, each broken on purpose. A model test that keeps quiet about one of these proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from areal.plan.cluster_names import Role
from areal.spec.status import CompleteReason, ConditionType
from areal_operator.kube.resources import CLUSTER_RUNTIMES, Json
from areal_operator.operator import conditions, decide, evictions, failure_policy, observe, progress, reconcile
from areal_operator.operator.decide import _Reconcile
from areal_operator.operator.decision import Converge, EndJob, Eviction
from areal_operator.operator.effects import Effects
from areal_operator.operator.fault_owner import FaultOwner
from areal_operator.operator.gang import TrainerGang
from areal_operator.operator.job_state import JobOutcome, JobState, StepEvidence, state_in
from areal_operator.operator.observed import Observation
from areal_operator.operator.reconcile import StatusWrite

Mutant = Callable[[pytest.MonkeyPatch], None]


def status_is_written_over_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """No optimistic lock: a look at a stale cache overwrites what a newer one decided."""
    real = reconcile.summarize

    def summarize(seen: Observation, decision: Any, now: float) -> Json:
        seen.raw["metadata"]["resourceVersion"] = ""
        return real(seen, decision, now)

    patch.setattr(reconcile, "summarize", summarize)


def things_are_done_though_the_status_was_refused(patch: pytest.MonkeyPatch) -> None:
    """An epoch is told that nobody wrote down."""
    real = reconcile.write_status

    async def write_status(*args: Any) -> StatusWrite:
        await real(*args)
        return StatusWrite()

    patch.setattr(reconcile, "write_status", write_status)


def epochs_are_written_with_the_next_figures(patch: pytest.MonkeyPatch) -> None:
    """An epoch is told first and written when figures are due."""
    real = reconcile.urgent

    def urgent(before: Json, after: Json) -> bool:
        return real({**before, "attempts": {}}, {**after, "attempts": {}})

    patch.setattr(reconcile, "urgent", urgent)


def a_failure_is_counted_each_time_it_is_seen(patch: pytest.MonkeyPatch) -> None:
    """A failed epoch keeps its members, so the next look finds the same failure."""
    real = _Reconcile._trainers_failures

    def trainers_failures(self: _Reconcile) -> Any:
        members = self.state.members
        end = real(self)
        self.state = replace(self.state, members=members)
        return end

    patch.setattr(_Reconcile, "_trainers_failures", trainers_failures)


def a_servers_failure_is_counted_each_time_it_is_seen(patch: pytest.MonkeyPatch) -> None:
    """The record of failures is not asked."""
    patch.setattr(failure_policy, "dealt_with", lambda incident, failures: False)


def a_gang_forms_of_those_who_are_there(patch: pytest.MonkeyPatch) -> None:
    """No formation gate."""
    patch.setattr(TrainerGang, "missing", property(lambda self: [] if self.pods else ["nobody is there"]))


def a_gang_that_never_worked_is_judged(patch: pytest.MonkeyPatch) -> None:
    """Pods that come and go while the gang forms cost restarts."""
    patch.setattr(TrainerGang, "proven", property(lambda self: True))


def an_epoch_that_is_over_fails_again(patch: pytest.MonkeyPatch) -> None:
    """What a launcher says of an earlier epoch is taken for this one."""
    real = TrainerGang.report

    def lenient(self: TrainerGang, pod: Any) -> Any:
        found = real(self, pod)
        bad = found is not None and found.phase in ("backing off", "failed")
        return replace(found, epoch=self.state.epoch) if bad and found is not None else found

    patch.setattr(TrainerGang, "report", lenient)


def an_end_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A finished job starts again."""

    def forgetful(status: Json) -> JobState:
        state = state_in(status)
        return replace(state, outcome=None)

    patch.setattr(observe, "state_in", forgetful)


def sleepers_are_not_asked_to_save(patch: pytest.MonkeyPatch) -> None:
    """A suspension takes the pods away at once."""
    patch.setattr(TrainerGang, "unsaved", lambda self: False)


def a_sleeping_job_keeps_its_fleet(patch: pytest.MonkeyPatch) -> None:
    """A suspension leaves replicas as they were."""
    real = Effects.run_workloads

    async def run_workloads(self: Effects, replicas: Any) -> None:
        admitted = self._seen.admitted
        assert admitted is not None
        await real(self, admitted.replicas if not any(replicas.values()) else replicas)

    patch.setattr(Effects, "run_workloads", run_workloads)


def all_servers_are_replaced_at_once(patch: pytest.MonkeyPatch) -> None:
    """A new template reaches the whole fleet in one look."""

    def outdated(seen: Observation, replicas: int) -> Any:
        workload = seen.workload(Role.GENERATION)
        if workload is None or not workload.revision:
            return ()
        return tuple(Eviction(pod, "") for pod in seen.of(Role.GENERATION) if pod.revision != workload.revision)

    patch.setattr(evictions, "outdated_server", outdated)


def pods_are_deleted_by_name(patch: pytest.MonkeyPatch) -> None:
    """An eviction hits whoever has the name now."""
    real = Effects.evict

    async def evict(self: Effects, evictions: Any) -> None:
        await real(self, [replace(e, pod=replace(e.pod, uid=None)) for e in evictions])

    patch.setattr(Effects, "evict", evict)


def everybody_restarts_with_the_trainers(patch: pytest.MonkeyPatch) -> None:
    """A trainer's failure takes the servers with it."""
    real = decide.decide

    def all_fall(seen: Observation, now: float) -> Any:
        decision = real(seen, now)
        if isinstance(decision, Converge) and decision.state.restarts > seen.state.restarts:
            evict = tuple(Eviction(pod, "") for pod in seen.pods if pod.role in (Role.WORKER, Role.REWARD))
            return replace(decision, evict=(*decision.evict, *evict))
        return decision

    patch.setattr(reconcile, "decide", all_fall)


def restarts_have_no_limit(patch: pytest.MonkeyPatch) -> None:
    """The budget is counted and not minded."""
    real = failure_policy.charge

    def charge(state: JobState, incident: Any, ruling: Any, policy: Any, now: float) -> Any:
        return real(state, incident, ruling, policy.model_copy(update={"max_restarts": 10**6}), now)

    patch.setattr(failure_policy, "charge", charge)


def the_runtime_is_followed(patch: pytest.MonkeyPatch) -> None:
    """An edit of the runtime reaches jobs that run."""
    real = observe._runtime

    def live(job: Json, world: Any) -> Any:
        found = world.caches[CLUSTER_RUNTIMES].get("", "cpu")
        return found if found is not None else real(job, world)

    patch.setattr(observe, "_runtime", live)


def a_dead_machine_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    """Nobody deletes what a dead kubelet holds."""
    patch.setattr(evictions, "stuck", lambda seen, now: ())


def an_audit_is_taken_for_granted(patch: pytest.MonkeyPatch) -> None:
    """A job is complete when its last step is trained."""

    def finish(self: _Reconcile) -> Any:
        state = replace(self.state, outcome=JobOutcome.COMPLETE, ended_at=self.now, members=())
        return EndJob(state, reason=CompleteReason.MAX_STEPS_REACHED, message="")

    patch.setattr(_Reconcile, "_finish", finish)


def failures_of_others_are_counted(patch: pytest.MonkeyPatch) -> None:
    """Evictions and lost machines spend the job's budget."""
    patch.setattr(failure_policy, "owner_of", lambda role, reason, conditions: FaultOwner.JOB)


def a_number_is_taken_for_a_step(patch: pytest.MonkeyPatch) -> None:
    """A step that a checkpoint brought back, or that a dead process named, counts as made."""

    def stepped(state: JobState, reports: Any, now: float) -> JobState:
        report = progress.speaker(reports, now)
        if report is None or report.step == state.step:
            return state
        return replace(state, step=report.step, step_at=now, evidence=StepEvidence(state.epoch, "", report.step))

    patch.setattr(progress, "stepped", stepped)


def a_gang_is_given_up_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """Members go, and no failure says why."""
    patch.setattr(failure_policy, "dissolved", lambda state, incident: replace(state, members=()))


def what_no_rule_excludes_is_progress(patch: pytest.MonkeyPatch) -> None:
    """The evidence's epoch isn't asked for."""
    real = conditions._QUESTIONS[ConditionType.PROGRESSING]

    def progressing(view: Any) -> Any:
        shown = view.state.evidence
        lenient = shown and replace(view.state, evidence=replace(shown, epoch=view.state.epoch, made=1))
        return real(replace(view, state=lenient) if lenient else view)

    patch.setitem(conditions._QUESTIONS, ConditionType.PROGRESSING, progressing)
