"""What peers and callers claim is bounded: one message can't keep the controller busy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.errors import ConfigError
from areal.rollout.contract.values import GroupInHand, WorkerReport, WorkReport
from areal.rollout.controller.core import ADMITTED_A_PASS
from areal.rollout.controller.decisions import GrantLease, Revoke
from areal.rollout.controller.fleet import MOST_GROUPS
from areal.rollout.controller.inputs import PublishWeights, SetHotFields, WorkerBeat
from areal.rollout.controller.settings import MOST_CONCURRENT, MOST_STALENESS, MOST_STEPS
from areal.spec.algorithm import Algorithm
from areal.spec.rollout import RolloutBlock
from controller_bench import SETTINGS, Bench, started, weights
from pydantic import BaseModel

HUGE = replace(SETTINGS, max_steps=MOST_STEPS, max_staleness=MOST_STALENESS, max_concurrent=MOST_CONCURRENT)


@pytest.mark.parametrize("field", ["max_steps", "max_staleness", "max_concurrent"])
@pytest.mark.parametrize("value", [2**31 - 1, 2**32 - 1])
def test_hot_values_beyond_the_job_files_bounds_are_refused(field: str, value: int) -> None:
    bench = started()
    answer = bench.ask(SetHotFields(**{field: value}))
    assert answer is not None
    assert isinstance(answer.error, ConfigError)
    assert bench.core.settings == SETTINGS


@pytest.mark.parametrize(
    ("model", "field", "most"),
    [
        (Algorithm, "max_steps", MOST_STEPS),
        (Algorithm, "max_staleness", MOST_STALENESS),
        (RolloutBlock, "max_concurrent_rollouts", MOST_CONCURRENT),
    ],
)
def test_the_bounds_are_those_of_the_job_file(model: type[BaseModel], field: str, most: int) -> None:
    assert most in [getattr(bound, "le", None) for bound in model.model_fields[field].metadata]


def test_a_worker_of_any_claimed_capacity_gets_so_many_groups_and_a_pass_admits_a_part_of_them() -> None:
    bench = Bench(HUGE)
    bench.ask(PublishWeights(1, weights(0)))
    bench.server(0)
    bench.core.take(WorkerBeat(WorkerReport("w", "1", 2**32 - 1, WorkReport())), 0.0)
    assert bench.core.crew.workers["w"].capacity == MOST_GROUPS
    assert sum(isinstance(decision, GrantLease) for decision in bench.core.decide(0.0)) == ADMITTED_A_PASS


def test_a_worker_that_holds_a_group_of_any_number_creates_no_groups_up_to_it() -> None:
    bench = started()
    before = bench.core.book.next_admission
    bench.worker("x", held=(GroupInHand(2**63, 1, (0,), 1, True),))
    assert bench.core.book.next_admission == before
    assert Revoke("x", 2**63) in bench.seen
