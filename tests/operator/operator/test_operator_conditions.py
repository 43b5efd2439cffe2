"""What a job's conditions say, and when their times move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from areal.errors import ArealError, BugError, Cause, ConfigError, DataError, InfraError
from areal.plan.cluster_names import Role
from areal.processes.core import ChildPhase
from areal.processes.exits import classify
from areal.spec.status import (
    CONDITION_MESSAGE,
    REASONS,
    AcceptedReason,
    ConditionType,
    ProgressingReason,
    ScheduledReason,
)
from areal_operator.operator.admission import JobRefusal
from areal_operator.operator.announce import announcements
from areal_operator.operator.conditions import ConditionText, conditions, transition
from areal_operator.operator.decide import decide
from areal_operator.operator.decision import HandsOff
from areal_operator.operator.job_state import Condition, JobFailure, JobOutcome, JobState, Rest, StepEvidence, state_in
from areal_operator.operator.observed import BatchJob, BatchStage, NodeState, Observation, Reports, TrainerProgress
from areal_operator.operator.summarize import summary_of
from areal_operator.operator.times import render
from hypothesis import given, settings
from operator_values import NOW, a_failure, controller, launchers, on_rows, remembered, says, seen, server, trainer
from support.examples import examples
from test_operator_decide import sights

WITHOUT = (trainer(0), trainer(1), server(0), server(1))
SILENT = {"n0": NodeState(ready=False, silent_since=NOW - 20)}


def said(base: Observation) -> dict[ConditionType, Condition]:
    decision = decide(base, NOW)
    assert not isinstance(decision, HandsOff)
    return conditions(base, decision, decision.state, NOW)


QUIET = says(ChildPhase.READY, at=NOW - 60)


def reported(launcher_epoch: int, *, step: int, epoch: int, made: int) -> Reports:
    """Two launchers in one epoch, and what rank 0 says of its own."""
    heard = {uid: says(ChildPhase.READY, launcher_epoch) for uid in ("t0", "t1")}
    shown = StepEvidence(epoch, f"p{epoch}", made)
    return Reports(None, TrainerProgress(step, 4, NOW - 60, NOW, evidence=shown), heard, NOW)


UNBOUND = {"PodScheduled": Condition("False", "Unschedulable", "0/3 nodes have a GPU", NOW)}
STALLED = a_failure(NOW - 50, "trainer", "", reason="Stalled")


def heard(state: JobState | None = None, **changes: Any) -> Observation:
    """A job that trains, whose controller says something else."""
    return seen(state, reports=replace(seen().reports, controller=replace(controller(), **changes)))


CASES: list[tuple[str, Observation, ConditionType, str, str]] = [
    ("well", seen(), ConditionType.ACCEPTED, "Valid", ""),
    (
        "refused",
        seen(JobState(), admitted=None, refusal=JobRefusal(AcceptedReason.LOCAL_PATH, "spec.model.path")),
        ConditionType.ACCEPTED,
        "LocalPath",
        "spec.model.path",
    ),
    (
        "preparing",
        seen(JobState(), prepare=BatchJob(BatchStage.RUNNING), pods=()),
        ConditionType.PREPARED,
        "Preparing",
        "",
    ),
    ("prepared", seen(), ConditionType.PREPARED, "SnapshotsWritten", ""),
    (
        "unbound",
        seen(pods=(trainer(0, node="", conditions=UNBOUND), trainer(1))),
        ConditionType.SCHEDULED,
        "Unschedulable",
        "digits-trainer-0: 0/3 nodes have a GPU",
    ),
    ("missing", seen(pods=WITHOUT), ConditionType.SCHEDULED, "PodsMissing", "4 of 8 pods"),
    ("training", seen(), ConditionType.TRAINER_READY, "RendezvousComplete", "2 pods train in epoch 1"),
    (
        "forming",
        launchers(seen(remembered(conditions={})), t1=says(ChildPhase.STARTING)),
        ConditionType.TRAINER_READY,
        "Forming",
        "1 of 2",
    ),
    (
        "again",
        launchers(seen(), t1=says(ChildPhase.BACKING_OFF, code=1)),
        ConditionType.TRAINER_READY,
        "Restarting",
        "epoch 2",
    ),
    (
        "pulling",
        seen(remembered(epoch=0, members=()), pods=(trainer(0), trainer(1, running=False, waiting="ErrImagePull"))),
        ConditionType.TRAINER_READY,
        "PodsNotReady",
        "digits-trainer-1 does not run (ErrImagePull)",
    ),
    ("serving", seen(), ConditionType.GENERATION_READY, "AllReplicasReady", "2 of 2"),
    (
        "one serves",
        seen(pods=(server(0), server(1, ready=False))),
        ConditionType.GENERATION_READY,
        "SomeReplicasReady",
        "1 of 2",
    ),
    (
        "nobody serves",
        seen(pods=(server(0, ready=False, waiting="CrashLoopBackOff"),)),
        ConditionType.GENERATION_READY,
        "NoReplicaReady",
        "CrashLoopBackOff",
    ),
    ("nobody scores", seen(pods=WITHOUT), ConditionType.REWARD_READY, "NoReplicaReady", ""),
    (
        "scoring",
        seen(pods=(server(0, role=Role.REWARD, name="digits-reward-x"),)),
        ConditionType.REWARD_READY,
        "Ready",
        "1 of 1",
    ),
    (
        "a server that Kubernetes calls ready and the controller doesn't hear",
        heard(silent={"generation-1": NOW - 8}),
        ConditionType.GENERATION_READY,
        "SomeReplicasReady",
        "1 of 2 servers answer; digits-generation-1 doesn't answer the controller",
    ),
    (
        "a server that the controller didn't hear for a moment",
        heard(silent={"generation-1": NOW - 6}),
        ConditionType.GENERATION_READY,
        "AllReplicasReady",
        "2 of 2 servers answer",
    ),
    (
        "servers of which a silent controller spoke last",
        heard(at=NOW - 8, silent={"generation-1": NOW - 80}),
        ConditionType.GENERATION_READY,
        "AllReplicasReady",
        "2 of 2 servers answer",
    ),
    (
        "a reward service that answers no worker",
        heard(unserved="w0 waited", unserved_role="reward", unserved_s=8.0),
        ConditionType.REWARD_READY,
        "Verifying",
        "1 of 1 pods answer Kubernetes, and none the workers: w0 waited",
    ),
    (
        "a reward service that answers again",
        heard(unserved="w0 waited", unserved_s=8.0),
        ConditionType.REWARD_READY,
        "Ready",
        "1 of 1 pods answer",
    ),
    ("no scores", seen(spec={"reward": {"verifier": None}}), ConditionType.REWARD_READY, "NotNeeded", ""),
    ("no scores on rows", on_rows("SFT"), ConditionType.REWARD_READY, "NotNeeded", "the training scores nothing"),
    (
        "no servers on rows",
        on_rows("DPO"),
        ConditionType.GENERATION_READY,
        "NotNeeded",
        "the training generates nothing",
    ),
    ("steps on rows", on_rows("SFT"), ConditionType.PROGRESSING, "StepReported", ""),
    ("steps", seen(), ConditionType.PROGRESSING, "StepReported", ""),
    (
        "no step yet",
        seen(remembered(step=0, step_at=None), reports=Reports()),
        ConditionType.PROGRESSING,
        "AwaitingFirstStep",
        "",
    ),
    (
        "recovering",
        seen(remembered(members=(), failures=(a_failure(NOW - 5, "trainer", "t"),)), pods=()),
        ConditionType.PROGRESSING,
        "Recovering",
        "t was lost (Error); step 5 was last",
    ),
    (
        "restored",
        seen(remembered(epoch=2, proven_epoch=2, step=4), reports=reported(2, step=4, epoch=2, made=0)),
        ConditionType.PROGRESSING,
        "Recovering",
        "epoch 2 goes on from its checkpoint at step 4; its first step is awaited",
    ),
    (
        "the word of a process that is gone",
        seen(remembered(epoch=2, proven_epoch=2), reports=reported(2, step=9, epoch=1, made=9)),
        ConditionType.PROGRESSING,
        "Recovering",
        "epoch 2",
    ),
    (
        "first step of an epoch",
        seen(remembered(epoch=2, proven_epoch=2, step=4), reports=reported(2, step=5, epoch=2, made=1)),
        ConditionType.PROGRESSING,
        "StepReported",
        "step 5, 1 of them in epoch 2",
    ),
    ("silent", launchers(seen(), t1=QUIET), ConditionType.PROGRESSING, "Verifying", "digits-trainer-1 on n1 doesn't"),
    ("silent gang", launchers(seen(), t1=QUIET), ConditionType.TRAINER_READY, "Verifying", "since 20"),
    (
        "silent controller",
        seen(remembered(step_at=NOW - 8), reports=replace(seen().reports, controller=controller(at=NOW - 8))),
        ConditionType.PROGRESSING,
        "Verifying",
        "the controller doesn't answer since",
    ),
    (
        "a step that is known for longer than it is written",
        seen(
            remembered(step_at=NOW - 12),
            reports=replace(
                reported(1, step=6, epoch=1, made=6),
                controller=controller(6, at=NOW - 9),
                trainer=TrainerProgress(6, 4, NOW - 60, NOW, evidence=StepEvidence(1, "p1", 6), since=NOW - 8),
            ),
        ),
        ConditionType.PROGRESSING,
        "Verifying",
        "the controller doesn't answer since",
    ),
    (
        "a ledger that doesn't answer the controller",
        heard(ledger_silent_s=8.5, state=remembered(step_at=NOW - 9)),
        ConditionType.PROGRESSING,
        "Verifying",
        "the ledger doesn't answer the controller since",
    ),
    (
        "a step since the ledger was silent",
        heard(ledger_silent_s=8.5, state=remembered(step_at=NOW - 6)),
        ConditionType.PROGRESSING,
        "StepReported",
        "steps are being trained",
    ),
    (
        "a role that did not do its work",
        heard(unserved="w0 waited", unserved_s=8.5, state=remembered(step_at=NOW - 9)),
        ConditionType.PROGRESSING,
        "Verifying",
        f"w0 waited from {render(NOW - 8.5)} on, and no step came after it; step 5 was last",
    ),
    (
        "a step since a role did not do its work",
        heard(unserved="w0 waited", unserved_s=80, state=remembered(step_at=NOW - 6)),
        ConditionType.PROGRESSING,
        "StepReported",
        "steps are being trained",
    ),
    (
        "a controller that answers anew",
        seen(remembered(step_at=NOW - 80, failures=(JobFailure(NOW - 10, "controller", "c0", reason="NodeLost"),))),
        ConditionType.PROGRESSING,
        "Recovering",
        "c0 was lost (NodeLost); step 5 was last",
    ),
    (
        "a step after the loss of a controller",
        seen(remembered(step_at=NOW - 9, failures=(JobFailure(NOW - 10, "controller", "c0", reason="NodeLost"),))),
        ConditionType.PROGRESSING,
        "StepReported",
        "steps are being trained",
    ),
    (
        "a server was lost meanwhile",
        seen(remembered(step_at=NOW - 80, failures=(JobFailure(NOW - 10, "generation", "g0", reason="NodeLost"),))),
        ConditionType.PROGRESSING,
        "StepReported",
        "steps are being trained",
    ),
    (
        "steps without the controller",
        seen(remembered(step_at=NOW - 6), reports=replace(seen().reports, controller=controller(at=NOW - 8))),
        ConditionType.PROGRESSING,
        "StepReported",
        "steps are being trained",
    ),
    (
        "nobody answers",
        seen(reports=Reports(launchers={"t0": QUIET, "t1": QUIET}, at=NOW)),
        ConditionType.PROGRESSING,
        "OperatorBlind",
        "digits-trainer-0 on n0 doesn't answer",
    ),
    ("nobody was asked yet", seen(reports=Reports()), ConditionType.TRAINER_READY, "RendezvousComplete", ""),
    (
        "stalled",
        seen(remembered(step_at=NOW - 100, failures=(STALLED,))),
        ConditionType.PROGRESSING,
        "Stalled",
        "no step since 100 s",
    ),
    (
        "stuck",
        seen(reports=replace(seen().reports, controller=controller(stalled="no rows are left"))),
        ConditionType.PROGRESSING,
        "Stalled",
        "no rows are left",
    ),
    ("auditing", seen(remembered(finishing=True)), ConditionType.COMPLETE, "Auditing", ""),
    ("saving", seen(spec={"suspend": True}), ConditionType.SUSPENDED, "CheckpointPending", ""),
    (
        "asleep",
        seen(remembered(rest=Rest.ASLEEP), pods=(), spec={"suspend": True}),
        ConditionType.SUSPENDED,
        "Suspended",
        "",
    ),
]


@pytest.mark.parametrize(
    ("base", "kind", "reason", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_condition_says_what_is_so(base: Observation, kind: ConditionType, reason: str, words: str) -> None:
    found = said(base)[kind]
    assert found.reason == reason
    assert words in found.message


def test_a_pod_that_a_dead_machine_holds_is_named_with_the_cure() -> None:
    held = server(0, role=Role.REDIS, name="digits-redis-0", terminating_until=NOW + 5)
    base = seen(remembered(rest=Rest.ENDING), pods=(held,), nodes=SILENT, spec={"suspend": True})
    message = said(base)[ConditionType.SUSPENDED].message
    assert "digits-redis-0 is on n0, which does not answer" in message
    assert "node.kubernetes.io/out-of-service" in message


def test_a_transition_time_moves_with_the_status_only() -> None:
    first = transition(None, ConditionText(ProgressingReason.AWAITING_FIRST_STEP, ""), 1, NOW)
    second = transition(first, ConditionText(ProgressingReason.RECOVERING, "again"), 2, NOW + 10)
    third = transition(second, ConditionText(ProgressingReason.STEP_REPORTED, ""), 2, NOW + 20)
    assert [(c.status, c.since - NOW, c.generation) for c in (first, second, third)] == [
        ("False", 0, 1), ("False", 0, 2), ("True", 20, 2),
    ]  # fmt: skip


def test_a_message_fits_its_field() -> None:
    found = transition(None, ConditionText(ScheduledReason.UNSCHEDULABLE, "x" * 9000), 1, NOW)
    assert len(found.message) == CONDITION_MESSAGE


@settings(max_examples=examples(300), deadline=None)
@given(sights())
def test_every_condition_is_said_once_in_its_own_words(base: Observation) -> None:
    """Each type, with one of its documented reasons and that reason's status; an end is never both ends."""
    found = said(base)
    assert list(found) == list(ConditionType)
    for kind, condition in found.items():
        reason = next(reason for reason in REASONS[kind] if reason.value == condition.reason)
        assert reason.when == condition.status
    assert not (found[ConditionType.COMPLETE].status == found[ConditionType.FAILED].status == "True")
    summary_of(found)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "Starting"),
        ({"Progressing": ("True", "StepReported")}, "Running"),
        ({"Progressing": ("False", "Stalled")}, "Stalled"),
        ({"Prepared": ("False", "Preparing")}, "Preparing"),
        ({"Accepted": ("False", "InvalidSpec"), "Prepared": ("False", "NotStarted")}, "Rejected"),
        ({"Accepted": ("False", "DryRunRejected"), "Progressing": ("True", "StepReported")}, "Running"),
        ({"Suspended": ("False", "CheckpointPending"), "Progressing": ("False", "Suspended")}, "Suspending"),
        ({"Suspended": ("True", "Suspended")}, "Suspended"),
        ({"Suspended": ("True", "Suspended"), "Scheduled": ("False", "QuotaPending")}, "Queued"),
        ({"Complete": ("False", "Auditing")}, "Completing"),
        ({"Complete": ("True", "MaxStepsReached")}, "Complete"),
        ({"Failed": ("True", "Stalled")}, "Failed"),
    ],
)
def test_one_word_is_made_from_the_conditions(changes: dict[str, tuple[str, str]], word: str) -> None:
    usual = {
        ConditionType.ACCEPTED: ("True", "Valid"), ConditionType.PREPARED: ("True", "SnapshotsWritten"),
        ConditionType.SUSPENDED: ("False", "NotSuspended"), ConditionType.PROGRESSING: ("False", "AwaitingFirstStep"),
        ConditionType.COMPLETE: ("False", "Running"), ConditionType.FAILED: ("False", "NotFailed"),
        ConditionType.SCHEDULED: ("True", "AllPodsBound"),
    }  # fmt: skip
    merged = {**usual, **{ConditionType(kind): value for kind, value in changes.items()}}  # type: ignore[call-arg]
    found = {kind: Condition(status, reason, "", NOW, 1) for kind, (status, reason) in merged.items()}
    assert summary_of(found) == word


# Events


def status(**reasons: tuple[str, str]) -> dict[str, Any]:
    return {
        "conditions": [
            {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": "words",
                "lastTransitionTime": "2027-01-01T00:00:00Z",
            }
            for kind, (value, reason) in reasons.items()
        ]
    }


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (status(), status(Accepted=("False", "LocalPath")), [("Warning", "LocalPath")]),
        (status(Accepted=("False", "LocalPath")), status(Accepted=("True", "Valid")), [("Normal", "Accepted")]),
        (status(Suspended=("False", "NotSuspended")), status(Suspended=("False", "NotSuspended")), []),
        (status(), status(Suspended=("False", "NotSuspended")), []),
        (status(Suspended=("True", "Suspended")), status(Suspended=("False", "NotSuspended")), [("Normal", "Resumed")]),
        (status(), status(Progressing=("False", "Stalled")), [("Warning", "Stalled")]),
        (status(), status(Failed=("True", "PermanentError")), [("Warning", "PermanentError")]),
        (status(), status(Complete=("True", "MaxStepsReached")), [("Normal", "Complete")]),
        (status(), {"attempts": {"epoch": 2, "members": ["a"]}}, [("Normal", "EpochStarted")]),
    ],
)  # fmt: skip
def test_a_turn_is_announced_once(before: dict[str, Any], after: dict[str, Any], told: list[tuple[str, str]]) -> None:
    assert [(said.type, said.reason) for said in announcements(before, after)] == told
    assert announcements(after, after) == []


def test_a_failure_is_announced_with_all_that_a_person_asks_first() -> None:
    failure = {
        "time": "2027-01-01T00:00:00Z", "role": "trainer", "pod": "digits-trainer-1", "exitCode": 137,
        "reason": "OOMKilled", "rule": "", "action": "RestartTrainer", "step": 97,
    }  # fmt: skip
    (told,) = announcements({}, {"failures": [failure]})
    assert (told.type, told.reason) == ("Warning", "RestartTrainer")
    assert told.message == "digits-trainer-1 at step 97: OOMKilled, exit code 137: RestartTrainer"


@pytest.mark.parametrize(
    "error",
    [
        InfraError("the disk is full: /run (0 bytes free)", cause=Cause.DISK_FULL), ConfigError("no such model"),
        InfraError("no memory is left", cause=Cause.NO_MEMORY), BugError("ValueError: odd (x.py:2 in f)"),
        DataError("row 7 has no prompt"), InfraError("can't reach a name server", cause=Cause.NO_NETWORK),
        None,
    ],
)  # fmt: skip
def test_a_condition_names_the_cause_that_the_role_left_in_its_words(error: ArealError | None) -> None:
    died = classify(error.exit_code if error else -9, error=error)
    told = replace(says(ChildPhase.FAILED, code=died.code), exit_reason=died.named(""))
    of_trainer = launchers(seen(spec={"failurePolicy": {"maxRestarts": 0}}), t1=told)
    failed = said(of_trainer)[ConditionType.FAILED]
    assert failed.status == "True"
    cause = error.cause if error else Cause.ROLE_KILLED
    assert f"{died.reason} [{cause}]" in failed.message


def test_an_end_stays_as_it_was_said() -> None:
    was = Condition("True", "StartupDeadlineExceeded", "no step within an hour", NOW - 50, 1)
    base = seen(remembered(outcome=JobOutcome.FAILED, ended_at=NOW - 50, conditions={ConditionType.FAILED: was}))
    assert said(base)[ConditionType.FAILED] == was


NEWER = [(kind, status) for kind in ConditionType for status in ("True", "False", "Unknown")]


@pytest.mark.parametrize(("kind", "status"), NEWER, ids=[f"{kind}: {status}" for kind, status in NEWER])
def test_a_status_with_words_of_a_newer_operator_is_read_and_what_has_ended_keeps_them(kind, status):
    stamp = {"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1, "message": "as I say"}
    newer = {"type": kind.value, "status": status, "reason": "OfNextYear", **stamp}
    raw = {"conditions": [newer, {"type": "OfNextYear", "status": "True", "reason": "New", **stamp}], "ofNextYear": 1}
    state = state_in(raw)
    if kind is ConditionType.SUSPENDED:
        assert state.rest is (Rest.ENDING if status == "True" else Rest.AWAKE)
    found = said(seen(replace(remembered(), rest=state.rest, conditions=state.conditions, outcome=state.outcome)))
    assert summary_of(found)
    if kind in (ConditionType.COMPLETE, ConditionType.FAILED) and status == "True":
        assert state.outcome == kind.value
        kept = found[kind]
        assert (kept.status, kept.reason, kept.message) == ("True", "OfNextYear", "as I say")
        assert announcements(state.conditions, found) is not None
