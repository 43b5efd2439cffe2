"""The audit finds what was planted, in the files that a run writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from areal.ledger import evidence as evidence_room
from areal.ledger.audit import audit
from areal.ledger.audit_report import AuditReport
from areal.ledger.evidence import EvidenceLog, TrainedGroup
from areal.ledger.journal import Journal, Tombstone


def groups(*numbers: int, size: int = 2) -> list[TrainedGroup]:
    return [TrainedGroup(g, tuple((i, g * 10 + i) for i in range(size))) for g in numbers]


def trainer(run: Path, fence: int, from_step: int) -> EvidenceLog:
    log = EvidenceLog(run / "evidence", fence)
    log.start(from_step, batch_groups=2, group_size=2)
    return log


def controller(run: Path, **reasons: list[int]) -> Journal:
    journal = Journal(run / "journal" / "controller.jsonl")
    journal.start(1)
    for reason, numbers in reasons.items():
        for group in numbers:
            journal.append_tombstones([Tombstone(group, reason, 1)])
    return journal


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps whose trainer died once after step 1 and went back to it; groups 2 and 6 were filtered."""
    controller(tmp_path, filtered=[2, 6])
    first = trainer(tmp_path, 1, 0)
    first.trained(0, groups(0, 1))
    first.attempt(1, {3: 40, 4: 40})
    first.trained(1, groups(3, 4))
    second = trainer(tmp_path, 2, 1)
    second.skipped(1, groups(3, 4))
    second.trained(2, groups(5, 7))
    second.finished(3)
    return tmp_path


def test_a_sound_run_passes(run: Path) -> None:
    report = audit(run)
    assert report.ok, report.problems
    assert (report.trained, report.skipped, report.steps, report.trainers) == (6, 2, 3, 2)
    assert (report.tombstoned, report.lost, report.duplicated, report.finished) == ({"filtered": 2}, [], [], True)
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def append(run: Path, write: Callable[[EvidenceLog], None], fence: int = 2) -> AuditReport:
    write(EvidenceLog(run / "evidence", fence))
    return audit(run)


def test_a_planted_duplicate_is_found(run: Path) -> None:
    report = append(run, lambda log: log.trained(3, groups(7, 8)))
    assert report.duplicated == [7]
    assert not report.ok


def test_a_planted_loss_is_found(run: Path) -> None:
    report = append(run, lambda log: log.trained(3, groups(9, 10)))
    assert report.lost == [8]
    assert not report.ok


def test_a_group_that_is_trained_and_tombstoned_is_found(run: Path) -> None:
    Journal(run / "journal" / "controller.jsonl").append_tombstones([Tombstone(5, "deadline", 2)])
    report = audit(run)
    assert report.duplicated == [5]
    assert any("deadline" in problem for problem in report.problems)


def test_a_sample_that_is_missing_or_twice_is_found(run: Path) -> None:
    report = append(run, lambda log: log.trained(3, [TrainedGroup(8, ((0, 1),)), TrainedGroup(9, ((0, 1), (0, 1)))]))
    assert report.lost == [8, 9]
    assert report.duplicated == [9]


def test_a_short_group_of_a_deadline_is_whole_when_the_journal_says_so(run: Path) -> None:
    journal = Journal(run / "journal" / "controller.jsonl")
    journal.start(2)
    journal.append_short(8, [1])
    report = append(run, lambda log: log.trained(3, [TrainedGroup(8, ((1, 5),)), *groups(9)]))
    assert report.ok, report.problems


def test_a_batch_of_the_wrong_size_is_found(run: Path) -> None:
    report = append(run, lambda log: log.trained(3, groups(8)))
    assert report.odd_batches == {3: 1}
    assert not report.ok


def test_a_step_left_out_is_found(run: Path) -> None:
    report = append(run, lambda log: log.trained(4, groups(8, 9)))
    assert any("step 4" in problem for problem in report.problems)


def test_a_zombie_that_trains_on_after_a_newer_start_changes_nothing(run: Path) -> None:
    report = append(run, lambda log: log.trained(2, groups(5, 9)), fence=1)
    assert report.ok, report.problems


def test_groups_in_flight_are_lost_only_once_the_run_has_finished(tmp_path: Path) -> None:
    controller(tmp_path, filtered=[5])
    trainer(tmp_path, 1, 0).trained(0, groups(0, 1))
    assert (audit(tmp_path).pending, audit(tmp_path).lost) == (3, [])
    assert audit(tmp_path, finished=True).lost == [2, 3, 4]
    EvidenceLog(tmp_path / "evidence", 1).finished(1)
    assert audit(tmp_path).lost == [2, 3, 4]


def test_training_without_a_journal_is_no_sound_run(tmp_path: Path) -> None:
    trainer(tmp_path, 1, 0).trained(0, groups(0, 1))
    assert not audit(tmp_path).ok


def test_a_torn_last_line_of_a_killed_trainer_is_no_problem(run: Path) -> None:
    path = run / "evidence" / "trainer-00000001.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    assert audit(run).ok


def test_damage_inside_the_evidence_is_a_problem(run: Path) -> None:
    path = run / "evidence" / "trainer-00000002.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"skipped", b"trained")
    path.write_bytes(b"\n".join(lines))
    report = audit(run)
    assert any("line 2 is damaged" in problem for problem in report.problems)


def test_evidence_is_read_as_it_was_written(run: Path) -> None:
    evidence = evidence_room.read(run / "evidence")
    assert [(e.step, e.fence, e.outcome) for e in evidence.entries] == [
        (0, 1, "trained"),
        (1, 1, "trained"),
        (1, 2, "skipped"),
        (2, 2, "trained"),
    ]
    assert evidence.entries[0].groups == tuple(groups(0, 1))
    assert evidence.attempts[0].groups == {3: 40, 4: 40}
    assert (evidence.finished, evidence.problems) == ([(2, 3)], [])
