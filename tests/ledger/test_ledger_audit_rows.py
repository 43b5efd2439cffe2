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
