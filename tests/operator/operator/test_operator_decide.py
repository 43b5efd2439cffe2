"""What is decided about a job, for what is seen of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from areal.plan.cluster_names import Role
from areal.processes.core import ChildPhase
from areal.spec.status import AcceptedReason, CompleteReason, FailedReason
from areal_operator.operator.admission import JobRefusal
from areal_operator.operator.conditions import conditions
from areal_operator.operator.decide import decide
from areal_operator.operator.decision import (
    CleanUp,
    Converge,
    Decision,
    EndJob,
    Finish,
    HandsOff,
    Prepare,
    Reject,
    Suspend,
)
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.job_state import JobOutcome, JobState, Rest
from areal_operator.operator.observed import BatchJob, BatchStage, NodeState, Observation, Pod, Reports, TrainerProgress
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_values import (
    NOW,
    STARTED,
    a_failure,
    controller,
    disrupted,
    ended,
    fleet,
    launchers,
    remembered,
    says,
    seen,
    server,
    trainer,
)
from support.examples import examples


def prepare_pod(**changes: Any) -> Pod:
    return replace(trainer(0, **changes), name="digits-prepare-x", uid="p0", role=Role.PREPARE, index=None)


def finish_pod(**changes: Any) -> Pod:
    return replace(trainer(0, **changes), name="digits-finish-x", uid="f0", role=Role.FINISH, index=None)


def done(base: Observation) -> Observation:
    return launchers(base, t0=says(ChildPhase.COMPLETE), t1=says(ChildPhase.COMPLETE))


REFUSED = JobRefusal(AcceptedReason.LOCAL_PATH, "model.path")
YOUNG = JobState()
AUDITING = remembered(finishing=True, members=())
UNLUCKY = BatchJob(BatchStage.FAILED, at=NOW)
LATE = {"runPolicy": {"activeDeadlineSeconds": 900}}
QUICK = {"runPolicy": {"startupDeadlineSeconds": 900}}

TABLE: list[tuple[str, Observation, type]] = [
    ("all is well", seen(), Converge),
    ("refused at first", seen(YOUNG, refusal=REFUSED, admitted=None), Reject),
    ("refused by a dry run", seen(YOUNG, refusal=REFUSED), Reject),
    ("refused while it runs", seen(refusal=REFUSED), Converge),
    ("new", seen(YOUNG, prepare=BatchJob(), pods=()), Prepare),
    ("being prepared", seen(YOUNG, prepare=BatchJob(BatchStage.RUNNING), pods=(prepare_pod(),)), Prepare),
    ("prepared", seen(YOUNG, pods=()), Converge),
    ("bad sources", seen(YOUNG, prepare=UNLUCKY, pods=(prepare_pod(ending=ended(65)),)), EndJob),
    (
        "bad sources, at once",
        seen(YOUNG, prepare=BatchJob(BatchStage.RUNNING), pods=(prepare_pod(ending=ended(64)),)),
        EndJob,
    ),
    ("unlucky preparation", seen(YOUNG, prepare=UNLUCKY, pods=(prepare_pod(ending=ended(75)),)), Prepare),
    ("asked to rest", seen(spec={"suspend": True}), Suspend),
    ("trained out", done(seen()), Finish),
    ("trained out long ago", seen(AUDITING), Finish),
    ("audited", done(seen(finish=BatchJob(BatchStage.COMPLETE))), EndJob),
    ("audit refused", seen(AUDITING, finish=BatchJob(BatchStage.FAILED), pods=(finish_pod(ending=ended(70)),)), EndJob),
    ("unlucky audit", seen(AUDITING, finish=BatchJob(BatchStage.FAILED), pods=(finish_pod(ending=ended(75)),)), Finish),
    ("too old", seen(spec=LATE), EndJob),
    ("too slow to start", seen(remembered(step=0, step_at=None), reports=Reports(), spec=QUICK), EndJob),
    ("ended", seen(remembered(outcome=JobOutcome.COMPLETE, ended_at=NOW - 10)), CleanUp),
    ("ended and refused since", seen(remembered(outcome=JobOutcome.FAILED), refusal=REFUSED, admitted=None), CleanUp),
]  # fmt: skip


@pytest.mark.parametrize(("base", "kind"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_situation_has_its_decision(base: Observation, kind: type) -> None:
    assert isinstance(decide(base, NOW), kind)


def test_a_job_of_another_controller_is_left_alone() -> None:
    base = seen()
    base.raw["spec"]["managedBy"] = "example.com/other"
    assert decide(base, NOW) == HandsOff()


@pytest.mark.parametrize(
    ("reason", "again_s"),
    [
        (AcceptedReason.INVALID_SPEC, None),
        (AcceptedReason.LOCAL_PATH, None),
        (AcceptedReason.RUNTIME_NOT_FOUND, 15.0),
        (AcceptedReason.RECIPE_NOT_FOUND, 15.0),
        (AcceptedReason.NOT_ALLOWED, None),
        (AcceptedReason.SECRET_REFUSED, 15.0),
        (AcceptedReason.DRY_RUN_REJECTED, 60.0),
    ],
)
def test_a_refusal_is_looked_at_again_when_the_cure_may_be_elsewhere(reason: AcceptedReason, again_s: float) -> None:
    decision = decide(seen(YOUNG, refusal=JobRefusal(reason, ""), admitted=None), NOW)
    assert isinstance(decision, Reject)
    assert decision.again_s == again_s


# The trainers


def test_a_whole_gang_gets_an_epoch_and_is_told() -> None:
    decision = decide(
        launchers(seen(remembered(epoch=0, members=())), t0=says(ChildPhase.IDLE, 0), t1=says(ChildPhase.IDLE, 0)), NOW
    )
    assert isinstance(decision, Converge)
    assert (decision.state.epoch, decision.state.members) == (1, ("t0", "t1"))
    assert [pod.uid for pod in decision.tell] == ["t0", "t1"]
    assert decision.state.restarts == 0


def test_a_gang_that_is_not_whole_waits() -> None:
    decision = decide(seen(remembered(members=()), pods=(trainer(0),)), NOW)
    assert isinstance(decision, Converge)
    assert (decision.state.epoch, decision.state.members, decision.tell) == (1, (), ())


def test_a_child_that_died_in_a_whole_gang_starts_the_next_epoch_at_once() -> None:
    decision = decide(launchers(seen(), t1=says(ChildPhase.BACKING_OFF, code=1)), NOW)
    assert isinstance(decision, Converge)
    assert (decision.state.epoch, decision.state.restarts, decision.state.counted) == (2, 1, 1)
    assert [pod.uid for pod in decision.tell] == ["t0", "t1"]


def test_a_pod_that_is_gone_ends_the_epoch_and_the_next_waits_for_its_successor() -> None:
    decision = decide(seen(pods=(trainer(0),)), NOW)
    assert isinstance(decision, Converge)
    assert (decision.state.epoch, decision.state.members, decision.state.restarts) == (1, (), 1)


def test_a_failure_elsewhere_with_a_rule_for_it_restarts_the_trainers() -> None:
    rule = {"name": "fleet", "action": "RestartTrainer", "roles": ["generation"]}
    base = seen(spec={"failurePolicy": {"rules": [rule]}}, pods=(trainer(0), trainer(1), server(0, ending=ended(1))))
    decision = decide(base, NOW)
    assert isinstance(decision, Converge)
    assert (decision.state.epoch, decision.state.failures[-1].rule) == (2, "fleet")


@pytest.mark.parametrize("code", [0, 143])
def test_a_server_that_was_asked_to_stop_has_not_failed(code: int) -> None:
    decision = decide(seen(pods=(trainer(0), trainer(1), server(0, ending=ended(code)))), NOW)
    assert isinstance(decision, Converge)
    assert decision.state.failures == ()


def test_a_server_that_is_being_deleted_has_not_failed_unless_it_was_disrupted() -> None:
    going = server(0, terminating_until=NOW, ending=ended(137))
    for pod, count in ((going, 0), (replace(going, conditions=disrupted()), 1)):
        decision = decide(seen(pods=(trainer(0), trainer(1), pod)), NOW)
        assert isinstance(decision, Converge)
        assert len(decision.state.failures) == count


def test_trainers_that_were_drained_and_may_run_again_are_replaced() -> None:
    decision = decide(launchers(seen(remembered(members=())), t0=says(ChildPhase.STOPPED)), NOW)
    assert isinstance(decision, Converge)
    assert [eviction.pod.uid for eviction in decision.evict] == ["t0"]


def test_launchers_ahead_of_the_status_get_an_epoch_of_their_own_for_free() -> None:
    decision = decide(launchers(seen(), t0=says(ChildPhase.READY, 9), t1=says(ChildPhase.READY, 9)), NOW)
    assert isinstance(decision, Converge)
    assert (decision.state.epoch, decision.state.restarts) == (10, 0)


def test_trainers_of_an_old_template_go_together_for_free() -> None:
    decision = decide(seen(workloads=(fleet(role=Role.TRAINER, revision="r2"),)), NOW)
    assert isinstance(decision, Converge)
    assert {eviction.pod.uid for eviction in decision.evict} == {"t0", "t1"}
    assert (decision.state.members, decision.state.restarts) == ((), 0)


# The fleet and its machines


def test_one_server_of_an_old_template_goes_at_a_time() -> None:
    old = fleet("r2")
    decision = decide(seen(workloads=(old,)), NOW)
    assert isinstance(decision, Converge)
    assert [eviction.pod.uid for eviction in decision.evict] == ["g1"]
    for pods in (
        (server(0), server(1, terminating_until=NOW)),
        (server(0), server(1, revision="r2", ready=False)),
        (server(0),),
    ):
        waiting = decide(seen(workloads=(old,), pods=(trainer(0), trainer(1), *pods)), NOW)
        assert isinstance(waiting, Converge)
        assert waiting.evict == ()
    stuck = decide(seen(workloads=(old,), pods=(trainer(0), trainer(1), server(0, ready=False), server(1))), NOW)
    assert isinstance(stuck, Converge)
    assert [eviction.pod.uid for eviction in stuck.evict] == ["g0"]


@pytest.mark.parametrize(
    ("nodes", "role", "forced"),
    [
        ({}, Role.GENERATION, True),
        ({}, Role.REDIS, True),
        ({"n0": NodeState(ready=False)}, Role.GENERATION, True),
        ({"n0": NodeState(ready=False)}, Role.REDIS, False),
        ({"n0": NodeState(ready=False, out_of_service=True)}, Role.REDIS, True),
        ({"n0": NodeState()}, Role.GENERATION, False),
        (None, Role.GENERATION, False),
    ],
)
def test_a_pod_that_never_ends_is_deleted_by_force_when_its_machine_cannot_object(
    nodes: dict[str, NodeState] | None, role: Role, forced: bool
) -> None:
    pod = server(0, role=role, terminating_until=NOW - 11)
    decision = decide(seen(nodes=nodes, pods=(trainer(0), trainer(1), pod)), NOW)
    assert isinstance(decision, Converge)
    assert [e.pod.uid for e in decision.evict if e.force] == (["g0"] if forced else [])
    early = decide(seen(nodes=nodes, pods=(trainer(0), trainer(1), replace(pod, terminating_until=NOW - 9))), NOW)
    assert isinstance(early, Converge)
    assert early.evict == ()


def test_hot_fields_are_set_when_they_differ_and_the_controller_can_be_heard() -> None:
    other = HotFields(99, 1, 8, 1)
    base = seen()
    for report, hot in (
        (controller(hot=other), HotFields(12, 1, 8, 1)),
        (controller(), None),
        (controller(hot=other, at=NOW - 60), None),
        (None, None),
    ):
        decision = decide(replace(base, reports=replace(base.reports, controller=report)), NOW)
        assert isinstance(decision, Converge)
        assert decision.hot == hot


# Stalls, rest, the end

STALL = {"runPolicy": {"stallTimeoutSeconds": 300}}


@pytest.mark.parametrize(
    ("state", "restarted"),
    [
        (remembered(step_at=NOW - 301), True),
        (remembered(step_at=NOW - 299), False),
        (remembered(step_at=NOW - 900, started_at=NOW - 200), False),
        (remembered(step_at=NOW - 900, failures=(a_failure(NOW - 200, "trainer", "t"),)), False),
        (remembered(step_at=NOW - 900, failures=(a_failure(NOW - 200),)), True),
    ],
)
def test_a_stall_is_counted_from_the_last_step_or_start(state: JobState, restarted: bool) -> None:
    decision = decide(seen(state, spec=STALL), NOW)
    assert isinstance(decision, Converge)
    assert (decision.state.restarts == 1) is restarted


def test_a_step_ends_a_stall() -> None:
    base = seen(remembered(step_at=NOW - 900), spec=STALL)
    decision = decide(replace(base, reports=replace(base.reports, trainer=TrainerProgress(6, 0, 0.0, NOW))), NOW)
    assert isinstance(decision, Converge)
    assert (decision.state.restarts, decision.state.step, decision.state.step_at) == (0, 6, NOW)
    known = TrainerProgress(6, 0, 0.0, NOW, since=NOW - 6)  # its time isn't that of the look that writes it
    assert decide(replace(base, reports=replace(base.reports, trainer=known)), NOW).state.step_at == NOW - 6


def test_stalls_use_the_budget_up_and_say_so() -> None:
    spec = {**STALL, "failurePolicy": {"maxRestarts": 0}}
    decision = decide(seen(remembered(step_at=NOW - 900), spec=spec), NOW)
    assert isinstance(decision, EndJob)
    assert decision.reason is FailedReason.STALLED


def test_stalled_trainers_whose_launcher_is_silent_are_replaced() -> None:
    decision = decide(launchers(seen(remembered(step_at=NOW - 900), spec=STALL), t1=None), NOW)
    assert isinstance(decision, Converge)
    assert [eviction.pod.uid for eviction in decision.evict] == ["t1"]


RESTING = {"suspend": True}


def test_a_job_rests_in_three_steps() -> None:
    first = decide(seen(spec=RESTING), NOW)
    assert isinstance(first, Suspend)
    assert (first.state.rest, [p.uid for p in first.drain], first.replicas) == (Rest.SAVING, ["t0", "t1"], None)
    saved = launchers(seen(first.state, spec=RESTING), t0=says(ChildPhase.STOPPED), t1=says(ChildPhase.STOPPED))
    second = decide(saved, NOW)
    assert isinstance(second, Suspend)
    assert second.state.rest is Rest.ENDING
    assert second.replicas is not None
    assert set(second.replicas.values()) == {0}
    third = decide(seen(second.state, spec=RESTING, pods=()), NOW)
    assert isinstance(third, Suspend)
    assert third.state.rest is Rest.ASLEEP


def test_a_resumed_job_starts_its_clock_and_its_gang_anew() -> None:
    asleep = remembered(rest=Rest.ASLEEP, members=(), started_at=NOW - 9000)
    decision = decide(seen(asleep, pods=()), NOW)
    assert isinstance(decision, Converge)
    assert (decision.state.rest, decision.state.started_at) == (Rest.AWAKE, NOW)


def test_an_audit_decides_how_a_job_ends() -> None:
    good = '{"lost": 0, "duplicated": 0, "tombstones": {}, "ok": true, "message": "clean"}'
    bad = '{"lost": 1, "duplicated": 0, "tombstones": {}, "ok": false, "message": "1 lost"}'
    for message, stage, reason in (
        (good, BatchStage.COMPLETE, CompleteReason.MAX_STEPS_REACHED),
        ("", BatchStage.COMPLETE, CompleteReason.MAX_STEPS_REACHED),
        (bad, BatchStage.RUNNING, FailedReason.AUDIT_FAILED),
        ("no json", BatchStage.COMPLETE, CompleteReason.MAX_STEPS_REACHED),
    ):
        pod = finish_pod(ending=ended(0 if stage is BatchStage.COMPLETE else 70, message=message))
        base = seen(remembered(finishing=True), finish=BatchJob(stage), pods=(pod,))
        decision = decide(base, NOW)
        assert isinstance(decision, EndJob)
        assert decision.reason is reason


def test_cleaning_up_waits_for_its_time() -> None:
    ended_ = remembered(outcome=JobOutcome.FAILED, ended_at=NOW - 3599)
    kept = decide(seen(ended_), NOW)
    gone = decide(seen(ended_), NOW + 2)
    assert isinstance(kept, CleanUp)
    assert isinstance(gone, CleanUp)
    assert (kept.remove, kept.again_s, len(gone.remove)) == ((), 1.0, 2)


# Whatever is seen

PHASES = st.sampled_from(list(ChildPhase))
REPORTS = st.none() | st.builds(
    says, PHASES, epoch=st.integers(0, 4), code=st.sampled_from([0, 1, -9, 64]), at=st.sampled_from([NOW, NOW - 60])
)
ENDINGS = st.none() | st.builds(
    ended, st.sampled_from([0, 1, 9, 64, 137, 143]), at=st.integers(0, 90).map(lambda s: NOW - s)
)
CHANGES = st.fixed_dictionaries({
    "running": st.booleans(), "ready": st.booleans(), "restarts": st.integers(0, 2), "ending": ENDINGS,
    "terminating_until": st.sampled_from([None, NOW - 60, NOW + 30]),
    "phase": st.sampled_from(["Pending", "Running", "Failed"]),
    "revision": st.sampled_from(["r1", "r2"]), "uid": st.sampled_from(["a", "b", "c", "d"]),
})  # fmt: skip
MEMORIES = st.builds(
    remembered,
    accepted=st.booleans(), prepared=st.booleans(), epoch=st.integers(0, 3),
    members=st.sampled_from([(), ("t0", "t1"), ("t0a", "t1b")]), restarts=st.integers(0, 3), counted=st.integers(0, 3),
    rest=st.sampled_from(list(Rest)), finishing=st.booleans(), step=st.integers(0, 12),
    step_at=st.sampled_from([None, NOW, NOW - 500]), started_at=st.sampled_from([None, STARTED]),
    outcome=st.sampled_from([None, None, None, *JobOutcome]),
    failures=st.lists(st.integers(0, 60).map(lambda s: a_failure(NOW - s)), max_size=5).map(lambda f: tuple(sorted(f))),
)  # fmt: skip
STAGES = st.builds(
    BatchJob, st.sampled_from(list(BatchStage)), st.just("b"), st.just("u"), st.integers(0, 90).map(lambda s: NOW - s)
)
SPECS = [{}, {"suspend": True}, {"runPolicy": {"stallTimeoutSeconds": 100}}, {"failurePolicy": {"maxRestarts": 2}}]
BASES = [seen(spec=spec) for spec in SPECS]


@st.composite
def sights(draw: st.DrawFn) -> Observation:
    base = draw(st.sampled_from(BASES))
    pods = []
    for make in (trainer, server):
        for index in range(draw(st.integers(0, 2))):
            changes = draw(CHANGES)
            uid = f"{'t' if make is trainer else 'g'}{index}{changes.pop('uid')}"
            pods.append(make(index, uid=uid, **changes))
    reports = {pod.uid: report for pod in pods if (report := draw(REPORTS)) is not None}
    refusal = draw(st.sampled_from([None, None, REFUSED]))
    return replace(
        base,
        state=draw(MEMORIES),
        pods=tuple(pods),
        admitted=None if refusal is not None and draw(st.booleans()) else base.admitted,
        refusal=refusal,
        prepare=draw(STAGES),
        finish=draw(STAGES),
        nodes=draw(st.sampled_from([None, {}, {"n0": NodeState(ready=False)}])),
        workloads=draw(
            st.sampled_from([(), (fleet("r2"), fleet("r2", Role.TRAINER)), (fleet(), fleet(role=Role.TRAINER))])
        ),
        reports=replace(base.reports, launchers=reports),
    )


def state_of(decision: Decision) -> JobState:
    assert not isinstance(decision, HandsOff)
    return decision.state


def makes_anything(decision: Decision) -> bool:
    match decision:
        case Prepare() | Finish():
            return True
        case Converge(apply=apply):
            return apply
        case Suspend(replicas=replicas):
            return replicas is not None and any(replicas.values())
    return False


@settings(max_examples=examples(600), deadline=None)
@given(sights())
def test_whatever_is_seen_the_promises_of_a_decision_hold(base: Observation) -> None:
    decision = decide(base, NOW)
    after, before = state_of(decision), base.state
    assert decide(base, NOW) == decision  # the same sight, the same decision
    assert after.epoch >= before.epoch
    assert after.restarts >= before.restarts
    assert after.counted >= before.counted
    if before.outcome is not None:
        assert isinstance(decision, CleanUp)
        assert after.outcome is before.outcome
    if before.outcome is not None or (base.refusal is not None and not before.prepared):
        assert not makes_anything(decision)
    if base.admitted is not None and base.admitted.job.spec.suspend:
        assert not makes_anything(decision)
    if after.members:
        assert len(after.members) == 2
    if after.epoch > before.epoch:
        assert isinstance(decision, Converge)


@settings(max_examples=examples(600), deadline=None)
@given(sights())
def test_a_decision_that_was_remembered_is_not_made_again(base: Observation) -> None:
    """Seen again with nothing changed but the status: no failure is counted, and no epoch begun, a second time."""
    decision = decide(base, NOW)
    decided = state_of(decision)
    if decided.outcome is not None:
        return
    first = replace(decided, conditions=conditions(base, decision, decided, NOW))
    again = state_of(decide(replace(base, state=first), NOW))
    assert (again.restarts, again.counted, again.failures) == (first.restarts, first.counted, first.failures)
    assert again.epoch == first.epoch or first.members == ()
