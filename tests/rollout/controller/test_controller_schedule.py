"""Which versions are measured, which rows are in work, and how often a row is tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.ledger.state import LedgerModel
from areal.rollout.contract.values import EvaluationAnswer, FailureKind
from areal.rollout.controller.core import Rebuilt
from areal.rollout.controller.decisions import Decision, LeaseEvaluation, RecordEvaluation
from areal.rollout.controller.evaluation import Evaluations
from areal.rollout.controller.settings import ControllerSettings, TrainPosition, retry_pause_s
from controller_bench import SETTINGS, Bench, weights

ROWS = replace(SETTINGS, evaluation_interval=3, evaluation_rows=3)
TRIES = 20


class Plan:
    """Evaluations by themselves, and what they decided."""

    def __init__(self, settings: ControllerSettings = ROWS, finished: tuple[str, ...] = ()) -> None:
        self.said: list[Decision] = []
        self.evaluations = Evaluations(TrainPosition(settings), finished, self.said.append)

    def measured(self, *versions: int) -> list[int]:
        """Publish these; the versions that are being measured then."""
        for version in versions:
            self.evaluations.published(weights(version))
        return [run.version for run in self.evaluations.runs]

    def leases(self, workers: tuple[str, ...] = ("a", "b"), newest: int = 0, now: float = 0.0) -> list[tuple[str, int]]:
        self.said.clear()
        self.evaluations.lease(list(workers), newest, now)
        return [(one.worker, one.row) for one in self.said if isinstance(one, LeaseEvaluation)]

    def ended(self, row: int, kind: FailureKind = FailureKind.NONE, *, now: float = 0.0, score: float = 1.0) -> None:
        self.evaluations.result(now, EvaluationAnswer("0.f1", row, score, 0, 0, kind=kind))


@pytest.mark.parametrize(
    ("at_start", "versions", "measured"),
    [
        (True, (0,), [0]), (False, (0,), []), (True, (1,), [1]), (False, (2,), []), (False, (3,), [3]),
        (False, (4,), [4]), (False, (3, 4, 5), [3]), (False, (3, 5, 6), [3, 6]), (True, (0, 1, 2, 3), [0, 3]),
        (False, (0, 2, 7), [7]),
    ],
)  # fmt: skip
def test_a_version_is_measured_when_it_passes_the_next_multiple_of_the_interval(
    at_start: bool, versions: tuple[int, ...], measured: list[int]
) -> None:
    assert Plan(replace(ROWS, evaluation_at_start=at_start)).measured(*versions) == measured


def test_after_a_restart_what_was_recorded_is_not_measured_again() -> None:
    plan = Plan(finished=("3.f1", "0.f1"))
    assert plan.measured(3, 4, 5) == []
    assert plan.measured(6) == [6]


def test_without_rows_or_an_interval_nothing_is_measured_and_every_version_is_final() -> None:
    for settings in (replace(ROWS, evaluation_rows=0), replace(ROWS, evaluation_interval=0)):
        plan = Plan(settings)
        assert plan.measured(0, 3) == []
        assert plan.evaluations.final(weights(9))


def test_a_rollback_drops_what_measures_later_versions_and_its_interval_is_due_again() -> None:
    plan = Plan()
    assert plan.measured(0, 3) == [0, 3]
    plan.leases(newest=3)
    plan.evaluations.published(weights(2, rollback=True))
    assert [run.version for run in plan.evaluations.runs] == [0]
    assert plan.measured(3) == [0, 3]
    plan.evaluations.published(weights(3, rollback=True))
    assert [run.version for run in plan.evaluations.runs] == [0, 3], "it is not later"


def test_a_newer_version_takes_the_place_of_one_that_nobody_began() -> None:
    plan = Plan()
    assert plan.measured(0, 3, 6) == [0, 6]
    plan.leases(("a",), newest=9)  # 3 rows of the first, 3 of the second
    assert plan.measured(9) == [0, 6, 9]
    assert not plan.evaluations.final(weights(6))
    assert [run.version for run in plan.evaluations.runs] == [0, 6]


def test_rows_go_round_the_workers_first_evaluation_first_up_to_the_cap() -> None:
    plan = Plan(replace(ROWS, evaluation_concurrent=4))
    plan.measured(0, 3)
    assert plan.leases(newest=2) == [("a", 0), ("b", 1), ("a", 2)], "no server holds version 3 yet"
    assert plan.leases(newest=3) == [("b", 0)]
    assert plan.leases(newest=3) == []
    plan.ended(0)
    assert plan.leases(newest=3) == [("b", 1)]
    assert plan.leases(()) == []
    plan.evaluations.lease(["a"], None, 0.0)
    assert plan.said == []


def test_an_orphans_rows_are_made_by_others() -> None:
    plan = Plan()
    plan.measured(0)
    assert plan.leases() == [("a", 0), ("b", 1), ("a", 2)]
    plan.evaluations.orphan("a")
    assert sorted(row for _, row in plan.leases(("b",))) == [0, 2]


def test_a_row_is_tried_again_after_a_pause_for_infrastructure_and_at_last_has_no_score() -> None:
    plan = Plan(replace(ROWS, evaluation_rows=1))
    plan.measured(0)
    now = 0.0
    for tries in range(TRIES - 1):
        assert plan.leases(now=now) == [("a", 0)]
        plan.ended(0, FailureKind.INFRA, now=now)
        assert plan.leases(now=now + retry_pause_s(tries) - 0.01) == []
        now += retry_pause_s(tries)
    assert plan.leases(now=now) == [("a", 0)]
    plan.ended(0, FailureKind.INFRA, now=now)
    (record,) = plan.evaluations.recorded
    assert (record.rows, record.failed_rows, record.mean) == (0, 1, 0.0)
    assert plan.evaluations.ended_rows == 1


def test_answers_count_once_of_rows_that_there_are() -> None:
    plan = Plan()
    plan.measured(0)
    plan.leases()
    plan.ended(3)
    plan.evaluations.result(0.0, EvaluationAnswer("0.f1", 0, 1.0, 0, 0, sample=1))
    plan.evaluations.result(0.0, EvaluationAnswer("9.f1", 0, 1.0, 0, 0))
    assert plan.evaluations.ended_rows == 0
    plan.ended(0, score=0.5)
    plan.ended(0, score=1.0)
    plan.ended(1, FailureKind.HANG)
    plan.ended(1, score=1.0)
    assert plan.evaluations.ended_rows == 2
    plan.evaluations.result(0.0, EvaluationAnswer("0.f1", 2, 1.0, 4, 7))
    (record,) = [one for one in plan.said if isinstance(one, RecordEvaluation)]
    assert (record.mean, record.rows, record.failed_rows) == (0.5, 2, 1)
    assert (record.oldest_version, record.newest_version) == (0, 7)
    assert (plan.evaluations.runs, plan.evaluations.finished) == ([], {"0.f1"})


def test_a_late_answer_of_a_row_that_waits_again_counts_and_is_made_by_nobody_else() -> None:
    plan = Plan()
    plan.measured(0)
    plan.leases()
    plan.evaluations.orphan("a")
    plan.ended(0)
    assert [row for _, row in plan.leases()] == [2]


def test_a_controller_that_starts_again_measures_what_it_serves() -> None:
    def begun(evaluated: tuple[str, ...]) -> list[LeaseEvaluation]:
        view = LedgerModel().scan()
        bench = Bench(settings=ROWS, rebuilt=Rebuilt(view=view, served=weights(3), evaluated=evaluated))
        bench.server(3)
        bench.worker()
        return bench.all(LeaseEvaluation)

    assert [(one.evaluation_id, one.row, one.floor) for one in begun(())] == [("3.f1", row, 3) for row in range(3)]
    assert begun(("3.f1",)) == []
