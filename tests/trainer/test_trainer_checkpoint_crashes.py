"""Checkpoints of two ranks cut short anywhere: whole or absent, and training goes on from the newest whole one."""

from __future__ import annotations

import json
import signal

import pytest
from areal_trainer.checkpoint.checkpointer import POINTS
from support.forked_ranks import program

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]

DEATHS = [(1, "staged"), (1, "mid-write"), *((0, point) for point in POINTS[1:])]
CASES = [*DEATHS, (1, "disk full"), (-1, "nowhere")]


@pytest.fixture(scope="module")
def found(tmp_path_factory, model_path):
    home = tmp_path_factory.mktemp("saving")
    said = program("saving_ranks", home, model_path, json.dumps(CASES))
    return dict(zip(CASES, map(json.loads, said), strict=True))


def norms(one):
    return [norm for _, norm in one["resumed"]]


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"rank {death[0]} {death[1]}")
def test_a_rank_that_dies_leaves_the_checkpoint_before_or_a_whole_one(found, death):
    one, (victim, point) = found[death], death
    assert one["codes"][victim] == (-signal.SIGXFSZ if point == "mid-write" else -signal.SIGKILL), one
    whole = point == "sealed"
    assert {step for step, _ in one["resumed"]} == ({2} if whole else {1}), one
    assert "step-000001.f1" in one["left"]
    expected = norms(found[(-1, "nowhere") if whole else (1, "staged")])[0]
    assert norms(one) == pytest.approx([expected] * len(norms(one)), abs=1e-6)


def test_a_full_disk_is_named_and_leaves_nothing(found):
    one = found[1, "disk full"]
    assert one["codes"][0] == 75, one
    assert "checkpoint step-000002.f1 could not be written" in one["errors"]["0"]
    assert "rank 1: OSError: [Errno 27] File too large" in one["errors"]["0"]
    assert "step-000002.f1.tmp" not in one["left"]
    assert [step for step, _ in one["resumed"]] == [1]


def test_what_is_saved_is_the_step_and_not_what_was_trained_meanwhile(found):
    one = found[-1, "nowhere"]
    assert (one["codes"], [step for step, _ in one["resumed"]]) == ([0, 0], [2, 2])
    assert {"step-000001.f1", "step-000002.f1"} < set(one["left"])
    assert norms(one)[0] == pytest.approx(norms(one)[1], abs=1e-6)
    assert norms(found[1, "staged"])[0] != pytest.approx(norms(one)[0], abs=1e-6)
