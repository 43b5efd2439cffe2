"""What a job waits for: one cause, where it is, and since when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from areal.observe.live import Idle, IdleCause
from areal.plan.cluster_names import Role
from areal.spec.status import AcceptedReason
from areal_operator.operator.admission import JobRefusal
from areal_operator.operator.job_state import Condition, JobOutcome, JobState
from areal_operator.operator.observed import Observation, Reports
from areal_operator.operator.summarize import urgent
from areal_operator.operator.times import FRESH_S
from operator_values import NOW, controller, on_rows, others, remembered, seen, server, trainer
from test_operator_summarize import status

FULL = {"PodScheduled": Condition("False", "Unschedulable", "0/5 nodes: 3 too few nvidia.com/gpu", NOW - 60)}
NEVER = remembered(step=0, step_at=None, evidence=None, proven_epoch=0)


def telling(cause: IdleCause, idle: str = "", at: float = NOW) -> Observation:
    """The controller says why it admits nothing."""
    return replace(
        seen(), reports=replace(seen().reports, controller=replace(controller(at=at), idle=Idle(cause, idle)))
    )


CASES: list[tuple[str, Observation, str, Role | str, str, str]] = [
    ("refused", seen(JobState(), refusal=JobRefusal(AcceptedReason.LOCAL_PATH, "model.path"), admitted=None),
     "LocalPath", "", "", "model.path"),
    ("no node", seen(pods=(trainer(0, node="", conditions=FULL), trainer(1), *others())),
     "Unschedulable", Role.TRAINER, "digits-trainer-0", "3 too few nvidia.com/gpu"),
    ("no image", seen(pods=(trainer(0), trainer(1), server(0), server(
        1, ready=False, waiting="ImagePullBackOff", waiting_message="not found"), *others())),
     "ImagePullBackOff", Role.GENERATION, "digits-generation-1", "not found"),
    ("no certificate", replace(seen(), uncertified="Certificate x is not issued"),
     "CertificateMissing", "", "", "Certificate x is not issued"),
    ("pause", seen(replace(NEVER, next_epoch_at=NOW + 40, fruitless=3, members=())),
     "BackingOff", "", "", "3 epochs ended without a step"),
    ("no weights", telling(IdleCause.NO_WEIGHTS, "no weights are published yet: waiting for the trainer"),
     "no-weights", Role.CONTROLLER, "digits-controller", "waiting for the trainer"),
    ("controller silent", telling(IdleCause.GATE_CLOSED, at=NOW - FRESH_S - 5),
     "role-silent", Role.CONTROLLER, "digits-controller", "does not answer"),
    ("first step", seen(NEVER, reports=Reports()), "Forming", Role.TRAINER, "", "epoch 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("base", "cause", "role", "pod", "text"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_first_cause_that_fits_is_told_with_its_place(
    base: Observation, cause: str, role: str, pod: str, text: str
) -> None:
    idle = status(base)["idle"]
    assert (idle["cause"], idle["role"], idle["pod"]) == (cause, role, pod)
    assert text in idle["text"]


@pytest.mark.parametrize(
    "base",
    [
        seen(),
        on_rows("SFT"),
        telling(IdleCause.GATE_CLOSED, "the gate is closed at version 4"),
        seen(remembered(outcome=JobOutcome.FAILED)),
    ],
)
def test_a_job_that_trains_or_has_ended_waits_for_nothing(base: Observation) -> None:
    assert "idle" not in status(base)


def test_since_is_kept_while_the_cause_is_and_its_words_alone_are_no_reason_to_write() -> None:
    def later(base: Observation, before: dict[str, Any], now: float = NOW) -> dict[str, Any]:
        return status(replace(base, raw={**base.raw, "status": before}), now)

    first = status(telling(IdleCause.NO_WEIGHTS, "no weights are published yet"))
    same = later(telling(IdleCause.NO_WEIGHTS, "no weights are published yet: waiting for the trainer"), first)
    assert same["idle"]["text"] == "no weights are published yet: waiting for the trainer"
    assert not urgent(first, same)
    assert later(telling(IdleCause.NO_WEIGHTS, "no weights are published yet"), first, NOW + 5)["idle"] == first["idle"]
    other = telling(IdleCause.NO_WORKER, "no rollout worker is connected")
    assert urgent(first, later(other, first))
    changed = later(other, first, NOW + 5)["idle"]
    assert (changed["cause"], changed["since"] > first["idle"]["since"]) == ("no-worker", True)
