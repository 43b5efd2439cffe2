"""Decision about one job: a pure function of what is observed, what its status remembers, and the time.

Owns the order in which a job's questions are asked: is it ours, has it ended, may it run, should it rest, is it done,
is its time up, is it prepared; then what failed, and what the trainers need. The same observation at the same time
gives the same decision, and a decision that was carried out leads to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from areal.plan.cluster_names import Role
from areal.spec.cluster import MANAGER, RunPolicy
from areal.spec.status import AcceptedReason, AuditStatus, CompleteReason, FailedReason

from areal_operator.operator import blame, budget, clocks, evictions, failure
from areal_operator.operator.admission import Admitted
from areal_operator.operator.blame import Lack
from areal_operator.operator.decision import (
    CleanUp,
    Converge,
    Decision,
    End,
    Eviction,
    Finish,
    HandsOff,
    Prepare,
    Reject,
    Suspend,
)
from areal_operator.operator.failure import STALLED, Action, Incident, Ruling
from areal_operator.operator.gang import Gang, gang_of
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.incidents import of_batch, of_roles
from areal_operator.operator.memory import Memory, Outcome, Rest
from areal_operator.operator.observed import Observed, Stage
from areal_operator.operator.progress import stepped, trained_out
from areal_operator.operator.results import audit_of
from areal_operator.operator.times import DRAIN_S, FRESH_S, RETRY_MISSING_S, RETRY_REFUSED_S, SOON_S, STEADY_S
from areal_operator.operator.timestamps import words

_RETRY_S = {
    AcceptedReason.RUNTIME_NOT_FOUND: RETRY_MISSING_S,
    AcceptedReason.RECIPE_NOT_FOUND: RETRY_MISSING_S,
    AcceptedReason.DRY_RUN_REJECTED: RETRY_REFUSED_S,
}


def decide(seen: Observed, now: float) -> Decision:
    """The next thing to do. `now` is in seconds since 1970."""
    if seen.raw.get("spec", {}).get("managedBy", MANAGER) != MANAGER:
        return HandsOff()
    if seen.memory.outcome is not None:
        return _clean_up(seen, now)
    refusal = seen.refusal
    if seen.admitted is None or (refusal is not None and not seen.memory.prepared):
        assert refusal is not None, "a job is admitted or refused"
        return Reject(seen.memory, reason=refusal.reason, message=refusal.message, again_s=_RETRY_S.get(refusal.reason))
    if seen.admitted.job.spec.suspend:
        return _suspend(seen, seen.admitted, now)
    return _Run(seen, seen.admitted, _awake(seen.memory, now), now).decide()


def _awake(memory: Memory, now: float) -> Memory:
    """The memory of a job that should run: its clock starts when it starts, and anew when it is resumed."""
    if memory.started_at is None:
        return clocks.started_anew(memory, now)
    if memory.rest is not Rest.AWAKE:
        return replace(clocks.started_anew(memory, now), rest=Rest.AWAKE, members=(), fruitless=0, next_epoch_at=None)
    return memory


def _suspend(seen: Observed, admitted: Admitted, now: float) -> Suspend:
    """First the trainers save, then the pods go, then the job rests. What has begun is not taken back half-way."""
    memory, stuck = seen.memory, evictions.stuck(seen, now)
    gang = gang_of(seen, admitted.replicas[Role.TRAINER], now)
    if gang.complete and not memory.finishing:
        memory = replace(trained_out(memory, seen.reports, admitted.hot.max_steps), finishing=True)
    memory = replace(memory, members=())
    first = memory.rest is Rest.AWAKE
    saving = first or memory.rest is Rest.SAVING
    in_time = first or now < memory.saving_since + DRAIN_S
    if saving and memory.epoch > 0 and in_time and gang.unsaved():
        memory = replace(memory, rest=Rest.SAVING)
        return Suspend(memory, drain=gang.to_drain(), evict=stuck, again_s=SOON_S)
    running = [pod for pod in seen.pods if not pod.over]
    batches = tuple(batch for batch in (seen.prepare, seen.finish) if batch.stage in (Stage.RUNNING, Stage.FAILED))
    rest = Rest.ENDING if running else Rest.ASLEEP
    nobody = dict.fromkeys(admitted.replicas, 0) if memory.prepared else None
    return Suspend(replace(memory, rest=rest), replicas=nobody, retire=batches, evict=stuck, again_s=STEADY_S)


def _clean_up(seen: Observed, now: float) -> CleanUp:
    """Pods go after the time that the run policy gives them, the job itself after its own."""
    memory, policy = seen.memory, _policy_of(seen)
    ended = memory.ended_at if memory.ended_at is not None else now
    due: list[float] = []
    cleanup = next((entry for entry in policy.cleanup if entry.when == memory.outcome), None)
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
    return CleanUp(memory, kept=kept, remove=remove, evict=stuck, delete_job=expired, again_s=again_s)


def _policy_of(seen: Observed) -> RunPolicy:
    """The run policy of a job that has ended, whatever else its spec says by now."""
    return seen.admitted.job.spec.run_policy if seen.admitted is not None else RunPolicy()


@dataclass
class _Run:
    """One reconcile of a job that should run. `memory` becomes the status; it changes as questions are asked."""

    seen: Observed
    admitted: Admitted
    memory: Memory
    now: float
    stalled: bool = False  # found just now

    def decide(self) -> Decision:
        if self.memory.finishing or self.gang.complete:
            return self._finish()
        self.memory = clocks.kept_waiting(self.memory, self._unplaced is not None, self.now)
        self.memory = stepped(self.memory, self.seen.reports, self.now)
        if (trainer := self.seen.reports.trainer) is not None:
            self.memory = budget.refunded(self.memory, trainer.checkpoint_step)
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
    def gang(self) -> Gang:
        seen = replace(self.seen, memory=self.memory)
        return gang_of(seen, self.admitted.replicas[Role.TRAINER], self.now)

    @cached_property
    def _unplaced(self) -> Lack | None:
        return blame.unplaced(self.seen, self.admitted.replicas)

    @property
    def _worked(self) -> bool:
        """Whether this configuration has trained a step."""
        return self.memory.step_at is not None

    @property
    def _started(self) -> float:
        return self.memory.started_at if self.memory.started_at is not None else self.now

    def _end(self, reason: CompleteReason | FailedReason, message: str, audit: AuditStatus | None = None) -> End:
        outcome = Outcome.COMPLETE if isinstance(reason, CompleteReason) else Outcome.FAILED
        memory = replace(self.memory, outcome=outcome, ended_at=float(int(self.now)), members=(), finishing=False)
        return End(memory, reason=reason, message=message, audit=audit)

    def _deadline(self) -> End | None:
        policy = self.admitted.job.spec.run_policy
        limit = policy.active_deadline_seconds
        if limit is not None and self.now >= self._started + limit:
            text = f"active for {words(self.now - self._started)}: runPolicy.activeDeadlineSeconds is {limit}"
            return self._end(FailedReason.ACTIVE_DEADLINE_EXCEEDED, text)
        limit, waited_s = policy.queue_deadline_seconds, clocks.waited_s(self.memory, self.now)
        if limit is not None and self._unplaced is not None and waited_s >= limit:
            text = f"waited {words(waited_s)} for nodes (runPolicy.queueDeadlineSeconds): {self._unplaced.text}"
            return self._end(FailedReason.QUEUE_DEADLINE_EXCEEDED, text)
        limit = policy.startup_deadline_seconds
        if self.memory.step_at is None and clocks.startup_s(self.memory, self.now) >= limit:
            text = f"no step was trained within {words(limit)} (runPolicy.startupDeadlineSeconds)"
            missing = self.gang.missing if self.memory.prepared else [self.seen.prepare.message or "it is not prepared"]
            why = f": {'; '.join(missing[:3])}" if missing else ""
            return self._end(FailedReason.STARTUP_DEADLINE_EXCEEDED, text + why)
        return None

    def _roles_failures(self) -> End | None:
        """Pods of all roles but the trainer: each failure is judged once, for itself."""
        policy = self.admitted.job.spec.failure_policy
        dealt_before = self.memory.failures
        for incident in of_roles(self.seen):
            if failure.dealt_with(incident, dealt_before):
                continue
            ruling = failure.judge(incident, policy, worked=self._worked)
            if (end := self._charge(incident, ruling)) is not None:
                return end
            if ruling.action is Action.RESTART_TRAINER:
                self.memory = budget.epoch_over(self.memory, self.now)
        return None

    def _charge(self, incident: Incident, ruling: Ruling, stalled: bool = False) -> End | None:
        """Remember a failure; the end, when it is one too many or fails the job."""
        policy = self.admitted.job.spec.failure_policy
        charged = budget.charge(self.memory, incident, ruling, policy, self.now)
        self.memory = charged.memory
        if charged.exhausted:
            text = (
                f"{_words(incident)}; {policy.max_restarts} restarts without a new checkpoint were used up "
                "(failurePolicy.maxRestarts)"
            )
            return self._end(FailedReason.STALLED if stalled else FailedReason.MAX_RESTARTS_EXCEEDED, text)
        if ruling.action is not Action.FAIL_JOB:
            return None
        if ruling.rule:
            return self._end(FailedReason.RULE_MATCHED, f"{_words(incident)}; rule {ruling.rule} of failurePolicy")
        return self._end(FailedReason.PERMANENT_ERROR, f"{_words(incident)}; no restart helps")

    def _preparation(self) -> Decision | None:
        if self.memory.prepared:
            return None
        batch = self.seen.prepare
        if batch.stage is Stage.COMPLETE:
            self.memory = replace(self.memory, prepared=True)
            return None
        incident = of_batch(batch, Role.PREPARE, self.seen)
        if incident is None:
            return Prepare(
                self.memory, evict=self._stuck, again_s=self._wake(SOON_S if batch.stage is Stage.GOING else STEADY_S)
            )
        if incident.exit_code in failure.HOPELESS[:2]:
            ruling, policy = Ruling(Action.FAIL_JOB, counted=False), self.admitted.job.spec.failure_policy
            self.memory = budget.charge(self.memory, incident, ruling, policy, self.now).memory
            return self._end(FailedReason.SOURCES_REFUSED, incident.message or _words(incident))
        return self._retry(incident) or Prepare(self.memory, retire=(batch,), evict=self._stuck, again_s=SOON_S)

    def _retry(self, incident: Incident) -> End | None:
        """Count one more try of a Job, once."""
        if failure.dealt_with(incident, self.memory.failures):
            return None
        return self._charge(incident, failure.judge(incident, self.admitted.job.spec.failure_policy))

    def _finish(self) -> Decision:
        """The last step is trained: whatever fails now can't take that away, but the audit must say so."""
        if not self.memory.finishing:
            self.memory = trained_out(self.memory, self.seen.reports, self.admitted.hot.max_steps)
            self.memory = replace(self.memory, finishing=True)
        batch = self.seen.finish
        audit = audit_of(self.seen)
        if batch.stage is Stage.COMPLETE or (audit is not None and not audit.ok):
            if audit is None or audit.ok:
                text = audit.message if audit is not None else "the audit is clean; its report is on the volume"
                return self._end(CompleteReason.MAX_STEPS_REACHED, text, audit=audit)
            return self._end(FailedReason.AUDIT_FAILED, audit.message, audit=audit)
        incident = of_batch(batch, Role.FINISH, self.seen)
        if incident is None:
            return Finish(self.memory, evict=self._stuck, again_s=SOON_S if batch.stage is Stage.GOING else STEADY_S)
        if incident.exit_code in failure.HOPELESS:
            return self._end(FailedReason.AUDIT_FAILED, incident.message or _words(incident))
        return self._retry(incident) or Finish(self.memory, retire=(batch,), evict=self._stuck, again_s=SOON_S)

    def _trainers_failures(self) -> End | None:
        gang, policy, worked = self.gang, self.admitted.job.spec.failure_policy, self._worked
        ended = gang.ended_launchers()
        hopeless = [one for one in ended if failure.judge(one, policy, worked=worked).action is Action.FAIL_JOB]
        incidents = [*gang.incidents(), *hopeless]
        if incidents and not hopeless and gang.unexplained:
            return None  # judged when its cause is known
        if incidents:
            incident, ruling = failure.worst(incidents, policy, worked=worked)
            if ruling.action is Action.RESTART_POD:  # of a gang, one pod can't restart alone
                ruling = replace(ruling, action=Action.RESTART_TRAINER)
            if (end := self._charge(incident, ruling)) is not None:
                return end
            self.memory = budget.epoch_over(self.memory, self.now)
        elif gang.broken or gang.overtaken:
            self.memory = replace(self.memory, members=())
        return None

    def _stall(self) -> End | None:
        """No step for too long, though the trainers have all that they need: their own incident.

        Judged only by an operator that hears any launcher at all.
        """
        limit = self.admitted.job.spec.run_policy.stall_timeout_seconds
        if self.memory.step_at is None or self.now < self._calm_until() or not self.gang.heard:
            return None
        if blame.lack_of(self.seen, self.admitted.replicas) is not None:
            return None
        report = self.seen.reports.controller
        said = report.stalled if report is not None and self.now - report.at <= FRESH_S else ""
        text = f"no step for {words(limit)} (runPolicy.stallTimeoutSeconds){f': {said}' if said else ''}"
        incident = Incident(Role.TRAINER, "", float(int(self.now)), STALLED, text)
        ruling = failure.judge(incident, self.admitted.job.spec.failure_policy, worked=self._worked)
        if ruling.action is Action.RESTART_POD:
            ruling = replace(ruling, action=Action.RESTART_TRAINER)
        if (end := self._charge(incident, ruling, stalled=True)) is not None:
            return end
        self.memory = budget.epoch_over(self.memory, self.now)
        self.stalled = True
        return None

    def _calm_until(self) -> float:
        """When the job is stalled unless a step comes first.

        Each start of the trainers gives them the whole time, and so does the end of a want of nodes or servers.
        """
        starts = [f.at for f in self.memory.failures if f.role == Role.TRAINER]
        served = blame.served_since(self.seen, self.admitted.replicas)
        last = max([self.memory.step_at or 0.0, self._started, served, self.memory.next_epoch_at or 0.0, *starts])
        return last + self.admitted.job.spec.run_policy.stall_timeout_seconds

    def _converge(self) -> Converge:
        """Everything runs as the spec asks, and the trainers are one gang."""
        gang, moved = self.gang, self._moved()
        if moved:
            self.memory = replace(self.memory, members=())
        elif not gang.formed and not gang.missing and self.now >= (self.memory.next_epoch_at or 0.0):
            self.memory = replace(self.memory, epoch=gang.next_epoch, members=gang.members, next_epoch_at=None)
        gang = self.gang
        evict = [*moved, *self._stuck, *evictions.failed(self.seen)]
        evict += [Eviction(pod, "its launcher was drained") for pod in gang.to_replace()]
        if self.stalled:
            evict += [Eviction(pod, "its launcher does not answer") for pod in gang.silent()]
        evict += evictions.outdated_server(self.seen, self.admitted.replicas.get(Role.GENERATION, 0))
        tell = gang.to_tell()
        return Converge(
            self.memory,
            replicas=self.admitted.replicas,
            apply=self.seen.refusal is None,
            tell=tell,
            hot=self._hot(),
            evict=tuple({e.pod.uid: e for e in reversed(evict)}.values()),
            again_s=self._wake(SOON_S if tell else STEADY_S),
        )

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
        """What the controller must be told; None when it has it, or can't be asked."""
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
        if self.memory.waiting_since is not None:
            if policy.queue_deadline_seconds is not None:
                due.append(self.now + policy.queue_deadline_seconds - clocks.waited_s(self.memory, self.now))
        elif self.memory.step_at is None:
            due.append(self.now + policy.startup_deadline_seconds - clocks.startup_s(self.memory, self.now))
        else:
            due.append(self._calm_until())
        due += [at for at in (self.memory.next_epoch_at, evictions.silence_due(self.seen)) if at is not None]
        return max(SOON_S, min(due) - self.now)


def _words(incident: Incident) -> str:
    """An incident in a sentence."""
    what = f"exit code {incident.exit_code}" if incident.exit_code is not None else incident.reason
    text = f"{incident.pod or incident.role.value}: {what}"
    return f"{text}, {incident.message}" if incident.message else text
