"""The audit of a supervised run counts how often each row was used."""

from __future__ import annotations

from pathlib import Path

from areal.ledger.audit import audit
from areal.ledger.evidence import EvidenceLog, FixedRows, TrainedGroup

ROWS = 3
PLAN = FixedRows(rows=ROWS, positions=6)  # two epochs, four a step


def positions(*places: int, rows: dict[int, int] | None = None) -> list[TrainedGroup]:
    of = rows or {}
    return [TrainedGroup(place, ((of.get(place, place % ROWS), 7),)) for place in places]


def begun(run: Path, fence: int, step: int) -> EvidenceLog:
    log = EvidenceLog(run / "evidence", fence)
    log.start(step, batch_groups=4, group_size=1, fixed=PLAN)
    return log


def test_a_run_of_two_epochs_with_a_crash_between_is_exactly_twice(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, 0)
    first.trained(0, positions(0, 1, 2, 3))
    first.trained(1, positions(4, 5))  # after the last checkpoint: its trainer died
    second = begun(tmp_path, 2, 1)
    second.trained(1, positions(4, 5))
    second.finished(2)
    report = audit(tmp_path)
    assert report.ok, report.problems
    assert (report.trained, report.steps, report.used, report.finished) == (6, 2, (2, 2), True)


def test_a_row_used_in_place_of_another_is_found(tmp_path: Path) -> None:
    log = begun(tmp_path, 1, 0)
    log.trained(0, positions(0, 1, 2, 3))
    log.trained(1, positions(4, 5, rows={5: 0}))
    log.finished(2)
    report = audit(tmp_path)
    assert not report.ok
    assert report.problems == ["rows are used 1 to 3 times, where 2 were asked of each"]


def test_a_step_that_is_missing_is_found_and_of_a_run_that_goes_on_the_rest_is_pending(tmp_path: Path) -> None:
    log = begun(tmp_path, 1, 0)
    log.trained(0, positions(0, 1, 2, 3))
    assert audit(tmp_path).pending == 2
    assert audit(tmp_path).ok
    assert audit(tmp_path, finished=True).lost == [4, 5]


def test_a_step_of_other_positions_or_of_too_few_is_found(tmp_path: Path) -> None:
    log = begun(tmp_path, 1, 0)
    log.trained(0, positions(0, 1, 3, 2))
    log.trained(1, positions(4))
    report = audit(tmp_path)
    assert "step 0 trained other positions than 0 to 3" in report.problems
    assert report.odd_batches == {1: 1}
    assert (report.lost, report.pending) == ([], 1)
    log.trained(3, positions(5))
    assert "step 3 stands where step 2 should" in audit(tmp_path).problems


def test_a_position_trained_twice_is_found(tmp_path: Path) -> None:
    log = begun(tmp_path, 1, 0)
    log.trained(0, positions(0, 1, 2, 3))
    log.trained(1, positions(3, 4))
    report = audit(tmp_path)
    assert (report.duplicated, report.trained) == ([3], 5)
    assert "position 3 is trained more than once" in report.problems


def test_skipped_steps_count_as_trained_and_a_step_that_is_left_out_is_lost(tmp_path: Path) -> None:
    log = begun(tmp_path, 1, 0)
    log.skipped(0, positions(0, 1, 2, 3))
    assert (audit(tmp_path).skipped, audit(tmp_path).ok, audit(tmp_path).used) == (4, True, (1, 2))
    other = tmp_path / "other"
    begun(other, 1, 1).trained(1, positions(4, 5))
    assert audit(other).lost == [0, 1, 2, 3]
    assert "position 0 is trained in no step" in audit(other).problems


def test_rows_of_a_half_epoch_are_used_once_or_twice(tmp_path: Path) -> None:
    log = begun(tmp_path, 1, 0)
    log.trained(0, positions(0, 1, 2, 3, rows={3: 4}))  # row 4 is none of this dataset's
    assert audit(tmp_path).problems == ["rows are used 1 to 1 times, where 1 were asked of each"]


def test_a_later_trainer_that_says_nothing_of_rows_is_found(tmp_path: Path) -> None:
    begun(tmp_path, 1, 0).trained(0, positions(0, 1, 2, 3))
    EvidenceLog(tmp_path / "evidence", 2).start(1, batch_groups=4, group_size=1)
    assert audit(tmp_path).problems == ["fence 2 says nothing of rows, an earlier trainer did"]
    assert audit(tmp_path).trainers == 2


def test_a_run_without_a_step_has_no_uses(tmp_path: Path) -> None:
    begun(tmp_path, 1, 0)
    report = audit(tmp_path)
    assert (report.ok, report.used, report.pending, report.lost) == (True, None, 6, [])


def test_rows_of_one_source_are_used_equally_often_and_not_as_often_as_those_of_another(tmp_path: Path) -> None:
    log = EvidenceLog(tmp_path / "evidence", 1)
    log.start(0, batch_groups=4, group_size=1, fixed=FixedRows(rows=3, positions=8, sources=(1, 2)))
    log.trained(0, positions(0, 1, 2, 3, rows={0: 0, 1: 1, 2: 0, 3: 2}))
    log.trained(1, positions(4, 5, 6, 7, rows={4: 0, 5: 1, 6: 0, 7: 1}))
    assert audit(tmp_path, finished=True).problems == ["rows are used 1 to 3 times, where 2 were asked of each"]
    again = EvidenceLog(tmp_path / "evidence", 2)
    again.start(1, batch_groups=4, group_size=1, fixed=FixedRows(rows=3, positions=8, sources=(1, 2)))
    again.trained(1, positions(4, 5, 6, 7, rows={4: 0, 5: 1, 6: 0, 7: 2}))
    again.finished(2)
    assert audit(tmp_path).ok
