"""Decision about one job: a pure function of what is observed, what its status remembers, and the time.

Owns the order in which a job's questions are asked: is it ours, has it ended, may it run, should it rest, is it done,
is its time up, is it prepared; then what failed, and what the trainers need. The same observation at the same time
gives the same decision, and a decision that was carried out leads to the next one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from areal.plan.cluster_names import Role
from areal.spec.cluster import MANAGER, RunPolicy
from areal.spec.status import AcceptedReason, AuditStatus, CompleteReason, FailedReason

from areal_operator.operator import evictions, failure_policy, fault_owner, progress, quota
from areal_operator.operator.admission import RunnableJob
from areal_operator.operator.decision import (
    CleanUp,
    Converge,
    Decision,
    EndJob,
    Eviction,
    Finish,
    HandsOff,
    Prepare,
    Reject,
    Suspend,
)
from areal_operator.operator.elastic import resized
from areal_operator.operator.failure_policy import STALLED, FailureAction, Incident, Ruling
from areal_operator.operator.fault_owner import NODE_LEAVES, TEMPLATE_CHANGED, Lack
from areal_operator.operator.gang import TrainerGang, gang_of
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import JobOutcome, JobState, Rest
from areal_operator.operator.observed import BatchStage, Observation, audit_of
from areal_operator.operator.pod_failures import of_batch, of_roles
from areal_operator.operator.times import DRAIN_S, FRESH_S, RETRY_MISSING_S, RETRY_REFUSED_S, SOON_S, STEADY_S, words

_RETRY_S = {
    AcceptedReason.RUNTIME_NOT_FOUND: RETRY_MISSING_S,
    AcceptedReason.RECIPE_NOT_FOUND: RETRY_MISSING_S,
    AcceptedReason.SECRET_REFUSED: RETRY_MISSING_S,
    AcceptedReason.DRY_RUN_REJECTED: RETRY_REFUSED_S,
}


def decide(seen: Observation, now: float) -> Decision:
    """The next thing to do. `now` is in seconds since 1970."""
    if seen.raw.get("spec", {}).get("managedBy", MANAGER) != MANAGER:
        return HandsOff()
    if seen.state.outcome is not None:
        return _clean_up(seen, now)
    refusal = seen.refusal
    if seen.admitted is None or (refusal is not None and not seen.state.prepared):
        assert refusal is not None, "a job is admitted or refused"
        return Reject(seen.state, reason=refusal.reason, message=refusal.message, again_s=_RETRY_S.get(refusal.reason))
    if seen.admitted.job.spec.suspend or quota.held_back(seen):
        return _suspend(seen, seen.admitted, now)
    return _Reconcile(seen, seen.admitted, _awake(seen.state, now), now).decide()


def _awake(state: JobState, now: float) -> JobState:
    """The state of a job that should run: its clock starts when it starts, and anew when it is resumed."""
    if state.started_at is None:
        return progress.started_anew(state, now)
    if state.rest is not Rest.AWAKE:
        return replace(progress.started_anew(state, now), rest=Rest.AWAKE, members=(), fruitless=0, next_epoch_at=None)
    return state


def _suspend(seen: Observation, admitted: RunnableJob, now: float) -> Suspend:
    """First the trainers save, then the pods go, then the job rests. What has begun is not taken back half-way."""
    state, stuck = seen.state, evictions.stuck(seen, now)
    gang = gang_of(seen, admitted.replicas[Role.TRAINER], now)
    if gang.complete and not state.finishing:
        state = replace(progress.trained_out(state, seen.reports, admitted.hot.max_steps), finishing=True)
    state = replace(state, members=())
    first = state.rest is Rest.AWAKE
    saving = first or state.rest is Rest.SAVING
    in_time = first or now < state.saving_since + DRAIN_S
    if saving and state.epoch > 0 and in_time and gang.unsaved():
        state = replace(state, rest=Rest.SAVING)
        return Suspend(state, drain=gang.to_drain(), evict=stuck, again_s=SOON_S)
    running = [pod for pod in seen.pods if not pod.over]
    batches = tuple(
        batch for batch in (seen.prepare, seen.finish) if batch.stage in (BatchStage.RUNNING, BatchStage.FAILED)
    )
    rest = Rest.ENDING if running else Rest.ASLEEP
    nobody = dict.fromkeys(admitted.replicas, 0) if state.prepared else None
    return Suspend(replace(state, rest=rest), replicas=nobody, retire=batches, evict=stuck, again_s=STEADY_S)


def _clean_up(seen: Observation, now: float) -> CleanUp:
    """Pods go after the time that the run policy gives them, the job itself after its own."""
    state, admitted = seen.state, seen.admitted
    policy = admitted.job.spec.run_policy if admitted is not None else RunPolicy()
    ended = state.ended_at if state.ended_at is not None else now
    due: list[float] = []
    cleanup = next((entry for entry in policy.cleanup if entry.when == state.outcome), None)
    kept = cleanup is None or cleanup.policy == "KeepPods"
    if cleanup is not None and not kept and now < ended + cleanup.after_seconds:
        kept = True
        due.append(ended + cleanup.after_seconds)
    remove = () if kept else (*seen.workloads, *seen.beside)
    expired = False
    if policy.ttl_seconds_after_finished is not None:
        expired = now >= ended + policy.ttl_seconds_after_finished
        due.append(ended + policy.ttl_seconds_after_finished)
    stuck = evictions.stuck(seen, now)
    if remove or any(pod.terminating for pod in seen.pods):
        due.append(now + STEADY_S)
    again_s = max(SOON_S, min(due) - now) if due else None
    return CleanUp(state, kept=kept, remove=remove, evict=stuck, delete_job=expired, again_s=again_s)


@dataclass
class _Reconcile:
    """One reconcile of a job that should run. `state` becomes the status; it changes as questions are asked."""

    seen: Observation
    admitted: RunnableJob
    state: JobState
    now: float
    stalled: bool = False  # found just now

    def decide(self) -> Decision:
        if self.state.finishing or self.gang.complete:
            return self._finish()
        self.state = progress.kept_waiting(self.state, self._unplaced is not None, self.now)
        self.state = progress.stepped(self.state, self.seen.reports, self.now)
        if (trainer := self.seen.reports.trainer) is not None:
            self.state = failure_policy.refunded(self.state, trainer.checkpoint_step)
        if self.gang.formed and self.gang.up == self.gang.size:
            self.state = replace(self.state, proven_epoch=self.state.epoch)
        questions: tuple[Callable[[], Decision | None], ...] = (
            self._deadline,
            self._roles_failures,
            self._preparation,
            self._trainers_failures,
            self._stall,
        )
        for question in questions:
            if (decision := question()) is not None:
                return decision
        return self._converge()

    @property
    def gang(self) -> TrainerGang:
        seen = replace(self.seen, state=self.state)
        return gang_of(seen, self.admitted.replicas[Role.TRAINER], self.now)

    @cached_property
    def _unplaced(self) -> Lack | None:
        return fault_owner.unplaced(self.seen, self.admitted.replicas)

    @property
    def _worked(self) -> bool:
        """Whether this configuration has trained a step."""
        return self.state.step_at is not None

    @property
    def _started(self) -> float:
        return self.state.started_at if self.state.started_at is not None else self.now

    def _end(self, reason: CompleteReason | FailedReason, message: str, audit: AuditStatus | None = None) -> EndJob:
        outcome = JobOutcome.COMPLETE if isinstance(reason, CompleteReason) else JobOutcome.FAILED
        state = replace(self.state, outcome=outcome, ended_at=float(int(self.now)), members=(), finishing=False)
        return EndJob(state, reason=reason, message=message, audit=audit)

    def _deadline(self) -> EndJob | None:
        policy = self.admitted.job.spec.run_policy
        limit = policy.active_deadline_seconds
        if limit is not None and self.now >= self._started + limit:
            text = f"active for {words(self.now - self._started)}: runPolicy.activeDeadlineSeconds is {limit}"
            return self._end(FailedReason.ACTIVE_DEADLINE_EXCEEDED, text)
        limit, waited_s = policy.queue_deadline_seconds, progress.waited_s(self.state, self.now)
        if limit is not None and self._unplaced is not None and waited_s >= limit:
            text = f"waited {words(waited_s)} for nodes (runPolicy.queueDeadlineSeconds): {self._unplaced.text}"
            return self._end(FailedReason.QUEUE_DEADLINE_EXCEEDED, text)
        limit = policy.startup_deadline_seconds
        if self.state.step_at is None and progress.startup_s(self.state, self.now) >= limit:
            text = f"no step was trained within {words(limit)} (runPolicy.startupDeadlineSeconds)"
            missing = self.gang.missing if self.state.prepared else [self.seen.prepare.message or "it is not prepared"]
            why = f": {'; '.join(missing[:3])}" if missing else ""
            return self._end(FailedReason.STARTUP_DEADLINE_EXCEEDED, text + why)
        return None

    def _roles_failures(self) -> EndJob | None:
        """Pods of all roles but the trainer: each failure is judged once, for itself."""
        policy = self.admitted.job.spec.failure_policy
        dealt_before = self.state.failures
        for incident in of_roles(self.seen, dealt_before):
            if failure_policy.dealt_with(incident, dealt_before):
                continue
            ruling = failure_policy.judge(incident, policy, worked=self._worked)
            if (end := self._charge(incident, ruling)) is not None:
                return end
            if ruling.action is FailureAction.RESTART_TRAINER:
                self.state = failure_policy.epoch_over(self.state, self.now)
        return None

    def _charge(self, incident: Incident, ruling: Ruling, stalled: bool = False) -> EndJob | None:
        """Remember a failure; the end, when it is one too many or fails the job."""
        policy = self.admitted.job.spec.failure_policy
        charged = failure_policy.charge(self.state, incident, ruling, policy, self.now)
        self.state = charged.state
        if charged.exhausted:
            used_up = (
                f"{policy.max_restarts} restarts without a new checkpoint were used up (failurePolicy.maxRestarts)"
            )
            text = f"{_words(incident)}; {used_up}"
            return self._end(FailedReason.STALLED if stalled else FailedReason.MAX_RESTARTS_EXCEEDED, text)
        if ruling.action is not FailureAction.FAIL_JOB:
            return None
        if ruling.rule:
            return self._end(FailedReason.RULE_MATCHED, f"{_words(incident)}; rule {ruling.rule} of failurePolicy")
        return self._end(FailedReason.PERMANENT_ERROR, f"{_words(incident)}; no restart helps")

    def _preparation(self) -> Decision | None:
        if self.state.prepared:
            return None
        batch = self.seen.prepare
        if batch.stage is BatchStage.COMPLETE:
            self.state = replace(self.state, prepared=True)
            return None
        incident = of_batch(batch, Role.PREPARE, self.seen)
        if incident is None:
            again_s = self._wake(SOON_S if batch.stage is BatchStage.GOING else STEADY_S)
            return Prepare(self.state, evict=self._stuck, again_s=again_s)
        if incident.exit_code in failure_policy.HOPELESS[:2]:
            ruling, policy = Ruling(FailureAction.FAIL_JOB, counted=False), self.admitted.job.spec.failure_policy
            self.state = failure_policy.charge(self.state, incident, ruling, policy, self.now).state
            return self._end(FailedReason.SOURCES_REFUSED, incident.message or _words(incident))
        return self._retry(incident) or Prepare(self.state, retire=(batch,), evict=self._stuck, again_s=SOON_S)

    def _retry(self, incident: Incident) -> EndJob | None:
        """Count one more try of a Job, once."""
        if failure_policy.dealt_with(incident, self.state.failures):
            return None
        return self._charge(incident, failure_policy.judge(incident, self.admitted.job.spec.failure_policy))

    def _finish(self) -> Decision:
        """The last step is trained: whatever fails now can't take that away, but the audit must say so."""
        if not self.state.finishing:
            self.state = progress.trained_out(self.state, self.seen.reports, self.admitted.hot.max_steps)
            self.state = replace(self.state, finishing=True)
        batch = self.seen.finish
        audit = audit_of(self.seen)
        if batch.stage is BatchStage.COMPLETE or (audit is not None and not audit.ok):
            if audit is None or audit.ok:
                text = audit.message if audit is not None else "the audit is clean; its report is on the volume"
                return self._end(CompleteReason.MAX_STEPS_REACHED, text, audit=audit)
            return self._end(FailedReason.AUDIT_FAILED, audit.message, audit=audit)
        incident = of_batch(batch, Role.FINISH, self.seen)
        if incident is None:
            again_s = SOON_S if batch.stage is BatchStage.GOING else STEADY_S
            return Finish(self.state, evict=self._stuck, again_s=again_s)
        if incident.exit_code in failure_policy.HOPELESS:
            return self._end(FailedReason.AUDIT_FAILED, incident.message or _words(incident))
        return self._retry(incident) or Finish(self.state, retire=(batch,), evict=self._stuck, again_s=SOON_S)

    def _trainers_failures(self) -> EndJob | None:
        gang, policy, worked = self.gang, self.admitted.job.spec.failure_policy, self._worked
        ended = gang.ended_launchers()
        hopeless = [
            one for one in ended if failure_policy.judge(one, policy, worked=worked).action is FailureAction.FAIL_JOB
        ]
        incidents = [*gang.incidents(), *hopeless]
        if incidents and not hopeless and gang.unexplained:
            return None  # judged when its cause is known
        if incidents:
            return self._end_epoch(*failure_policy.worst(incidents, policy, worked=worked))
        if lost := gang.dissolved():
            self.state = failure_policy.dissolved(self.state, failure_policy.worst(lost, policy)[0])
        return None

    def _stall(self) -> EndJob | None:
        """No step for too long, though the trainers have all that they need: their own incident.

        Judged only by an operator that hears any launcher at all.
        """
        limit = self.admitted.job.spec.run_policy.stall_timeout_seconds
        if self.state.step_at is None or self.now < self._calm_until() or not self.gang.heard:
            return None
        if fault_owner.lack_of(self.seen, self.admitted.replicas) is not None:
            return None
        report = self.seen.reports.controller
        said = report.stalled if report is not None and self.now - report.at <= FRESH_S else ""
        text = f"no step for {words(limit)} (runPolicy.stallTimeoutSeconds){f': {said}' if said else ''}"
        incident = Incident(Role.TRAINER, "", float(int(self.now)), STALLED, text)
        ruling = failure_policy.judge(incident, self.admitted.job.spec.failure_policy, worked=self._worked)
        end = self._end_epoch(incident, ruling, stalled=True)
        self.stalled = end is None
        return end

    def _end_epoch(self, incident: Incident, ruling: Ruling, stalled: bool = False) -> EndJob | None:
        """Have the trainers start again, unless the incident ends the job."""
        if ruling.action is FailureAction.RESTART_POD:  # of a gang, one pod can't restart alone
            ruling = replace(ruling, action=FailureAction.RESTART_TRAINER)
        end = self._charge(incident, ruling, stalled)
        if end is None:
            self.state = failure_policy.epoch_over(self.state, self.now)
        return end

    def _calm_until(self) -> float:
        """When the job is stalled unless a step comes first.

        Each start of the trainers gives them the whole time, and so does the end of a want of nodes or servers.
        """
        starts = [f.at for f in self.state.failures if f.role == Role.TRAINER]
        served = fault_owner.served_since(self.seen, self.admitted.replicas)
        last = max([self.state.step_at or 0.0, self._started, served, self.state.next_epoch_at or 0.0, *starts])
        return last + self.admitted.job.spec.run_policy.stall_timeout_seconds

    def _converge(self) -> Converge:
        """Everything runs as the spec asks, and the trainers are one gang."""
        gang, moved = self.gang, self._moved()
        if moved and gang.formed:
            reason = TEMPLATE_CHANGED if gang.outdated() else NODE_LEAVES
            first = Incident(Role.TRAINER, moved[0].pod.name, float(int(self.now)), reason, node=moved[0].pod.node)
            self.state = failure_policy.dissolved(self.state, first)
        elif not gang.formed and not gang.missing and self.now >= (self.state.next_epoch_at or 0.0):
            self.state = replace(self.state, epoch=gang.next_epoch, members=gang.members, next_epoch_at=None)
        gang = self.gang
        evict = [*moved, *self._stuck, *evictions.failed(self.seen)]
        evict += [Eviction(pod, "its launcher was drained") for pod in gang.to_replace()]
        if self.stalled:
            evict += [Eviction(pod, "its launcher does not answer") for pod in gang.silent()]
        evict += evictions.outdated_server(self.seen, self.admitted.replicas.get(Role.GENERATION, 0))
        self._resize()
        tell = gang.to_tell()
        return Converge(
            self.state,
            replicas=self.admitted.replicas,
            apply=self.seen.refusal is None,
            tell=tell,
            hot=self._hot(),
            evict=tuple({e.pod.uid: e for e in reversed(evict)}.values()),
            again_s=self._wake(SOON_S if tell else STEADY_S),
        )

    def _resize(self) -> None:
        """An elastic fleet follows its trainer; the next look asks for the pods."""
        fleet, report = self.admitted.job.spec.generation, self.seen.reports.controller
        limits, now = fleet.elastic, self.admitted.replicas.get(Role.GENERATION, 0)
        if limits is None or not now or not self.gang.formed:
            return
        if self.seen.queue is not None:  # which admitted no more than the job asks for
            limits = limits.model_copy(update={"max_replicas": min(limits.max_replicas, fleet.replicas)})
        wanted, why = resized(limits, now, report.watch if report is not None else None)
        if why:
            self.state = replace(self.state, servers=wanted, servers_why=why)

    def _moved(self) -> list[Eviction]:
        """Trainers that must go, and the gang with them: the template changed, or their machine leaves."""
        gang = self.gang
        found = [Eviction(pod, "its template has changed") for pod in gang.outdated()]
        if gang.formed:
            found += [Eviction(pod, f"its machine {pod.node} is being drained") for pod in gang.leaving()]
        return found

    @property
    def _stuck(self) -> tuple[Eviction, ...]:
        return evictions.stuck(self.seen, self.now)

    def _hot(self) -> HotFields | None:
        """Hot fields that the controller must be told; None when it has them, or can't be asked."""
        report = self.seen.reports.controller
        if report is None or self.now - report.at > FRESH_S or self.seen.refusal is not None:
            return None
        wanted = self.admitted.hot
        return wanted if report.hot != wanted else None

    def _wake(self, at_most_s: float) -> float:
        """When to reconcile again: at the next deadline, or after a while."""
        policy, due = self.admitted.job.spec.run_policy, [self.now + at_most_s]
        if policy.active_deadline_seconds is not None:
            due.append(self._started + policy.active_deadline_seconds)
        if self.state.waiting_since is not None:
            if policy.queue_deadline_seconds is not None:
                due.append(self.now + policy.queue_deadline_seconds - progress.waited_s(self.state, self.now))
        elif self.state.step_at is None:
            due.append(self.now + policy.startup_deadline_seconds - progress.startup_s(self.state, self.now))
        else:
            due.append(self._calm_until())
        due += [at for at in (self.state.next_epoch_at, evictions.silence_due(self.seen)) if at is not None]
        return max(SOON_S, min(due) - self.now)


def _words(incident: Incident) -> str:
    """An incident in a sentence."""
    what = f"exit code {incident.exit_code}" if incident.exit_code is not None else incident.reason
    text = f"{incident.pod or incident.role.value}: {what}"
    return f"{text}, {incident.message}" if incident.message else text
