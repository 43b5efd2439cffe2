"""The audit finds what was planted, in the files that a run writes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from areal.cli.main import app
from areal.ledger import evidence as evidence_room
from areal.ledger.audit import AuditReport, audit
from areal.ledger.evidence import EvidenceLog, TrainedGroup
from areal.ledger.journal import Journal, Tombstone
from typer.testing import CliRunner


def groups(*numbers: int, size: int = 2) -> list[TrainedGroup]:
    return [TrainedGroup(g, tuple((i, g * 10 + i) for i in range(size))) for g in numbers]


def trainer(run: Path, fence: int, from_step: int) -> EvidenceLog:
    log = EvidenceLog(run / "evidence", fence)
    log.start(from_step, batch_groups=2, group_size=2)
    return log


def controller(run: Path, *batches: tuple[int, ...], **reasons: list[int]) -> Journal:
    journal = Journal(run / "journal" / "controller.jsonl")
    journal.start(1)
    for step, batch in enumerate(batches):
        journal.append_batch(step, batch)
    for reason, numbers in reasons.items():
        for group in numbers:
            journal.append_tombstones([Tombstone(group, reason, 1)])
    return journal


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps whose trainer died once after step 1 and went back to it; groups 2 and 6 were filtered."""
    controller(tmp_path, (0, 1), (3, 4), (5, 7), filtered=[2, 6])
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


def aged(*groups: tuple[int, tuple[int, ...]]) -> list[TrainedGroup]:
    """Groups with their tokens, the sum of their versions, the oldest, the last step for them, the bound."""
    return [TrainedGroup(number, ((0, 1), (1, 2)), ages) for number, ages in groups]


def test_how_old_the_tokens_of_each_step_were_is_told_beside_the_bound(tmp_path: Path) -> None:
    controller(tmp_path, (0, 1), (2, 3), (4, 5))
    log = trainer(tmp_path, 1, 0)
    log.trained(0, aged((0, (10, 0, 0, 2, 2)), (1, (10, 0, 0, 2, 2))))
    log.trained(1, aged((2, (30, 30, 1, 3, 2)), (3, (10, 5, 0, 2, 2))))
    log.trained(2, aged((4, (10, 10, 0, 2, 2)), (5, ())))
    report = audit(tmp_path, finished=False)
    assert report.ages == {0: (0.0, 0, 2), 1: (1 - 35 / 40, 1, 2), 2: (1.0, 2, 2)}
    assert report.ok, report.problems
    assert json.loads(json.dumps(report.to_json()))["ages"]["1"] == [0.125, 1, 2]


def test_a_token_older_than_its_bound_is_named(tmp_path: Path) -> None:
    """Also where the next sample has a larger bound; what a trainer left behind trained does not count."""
    controller(tmp_path, (0, 1), (2, 3))
    first = trainer(tmp_path, 1, 0)
    first.trained(0, aged((0, (10, 0, 0, 1, 1)), (1, (10, 0, 0, 1, 1))))
    first.trained(1, aged((2, (10, 0, 0, 0, 1)), (3, (10, 0, 0, 4, 4))))
    report = audit(tmp_path, finished=False)
    assert report.problems == ["group 2 is trained in step 1, too old after step 0"]
    assert not report.ok
    second = trainer(tmp_path, 2, 1)
    second.trained(1, aged((2, (10, 10, 1, 2, 1)), (3, (10, 0, 0, 4, 4))))
    assert audit(tmp_path, finished=False).ok


def test_the_ages_are_printed_beside_the_bound(tmp_path: Path) -> None:
    controller(tmp_path, (0, 1))
    (tmp_path / "resolved.json").write_text("{}")
    trainer(tmp_path, 1, 0).trained(0, aged((0, (30, -30, -1, 1, 2)), (1, (10, 0, 0, 2, 2))))
    told = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert re.search(r"^ages +mean 0\.75, oldest 1; maxStaleness 2 *$", told.output, re.M), told.output


def test_how_far_generation_might_be_ahead_is_told_by_step(tmp_path: Path) -> None:
    """From the journal: it may change during a run."""
    journal = Journal(tmp_path / "journal" / "controller.jsonl")
    journal.start(1)
    for step, ahead in enumerate((1, 1, 3, 8)):
        journal.append_batch(step, (2 * step, 2 * step + 1), ahead=ahead)
    (tmp_path / "resolved.json").write_text("{}")
    log = trainer(tmp_path, 1, 0)
    for step in range(3):  # the fourth batch is chosen, not trained
        log.trained(step, aged((2 * step, (10, 0, 0, 8, 8)), (2 * step + 1, ())))
    assert audit(tmp_path, finished=False).ahead == {0: 1, 1: 1, 2: 3}
    told = CliRunner().invoke(app, ["audit", str(tmp_path)])
    assert re.search(r"^ages +mean 1\.00, oldest 2; ahead 1 or 3, maxStaleness 8 *$", told.output, re.M), told.output


def test_evidence_without_ages_is_read_as_it_was(run: Path) -> None:
    assert audit(run).ages == {}


def append(run: Path, write: Callable[[EvidenceLog], None], fence: int = 2, batch: tuple[int, ...] = ()) -> AuditReport:
    """`batch` is what was chosen for step 3."""
    write(EvidenceLog(run / "evidence", fence))
    if batch:
        journal = Journal(run / "journal" / "controller.jsonl")
        journal.start(2)
        journal.append_batch(3, batch)
    return audit(run)


def test_a_planted_duplicate_is_found(run: Path) -> None:
    report = append(run, lambda log: log.trained(3, groups(7, 8)), batch=(7, 8))
    assert report.duplicated == [7]
    assert not report.ok


def test_a_planted_loss_is_found(run: Path) -> None:
    report = append(run, lambda log: log.trained(3, groups(9, 10)), batch=(9, 10))
    assert report.lost == [8]
    assert not report.ok


def test_a_group_that_is_trained_and_tombstoned_is_found(run: Path) -> None:
    Journal(run / "journal" / "controller.jsonl").append_tombstones([Tombstone(5, "deadline", 2)])
    report = audit(run)
    assert report.duplicated == [5]
    assert any("deadline" in problem for problem in report.problems)


def test_a_sample_that_is_missing_or_twice_is_found(run: Path) -> None:
    report = append(
        run, lambda log: log.trained(3, [TrainedGroup(8, ((0, 1),)), TrainedGroup(9, ((0, 1), (0, 1)))]), batch=(8, 9)
    )
    assert report.lost == [8, 9]
    assert report.duplicated == [9]


def test_a_short_group_of_a_deadline_is_whole_when_the_journal_says_so(run: Path) -> None:
    journal = Journal(run / "journal" / "controller.jsonl")
    journal.start(2)
    journal.append_short(8, [1])
    journal.append_batch(3, [8, 9])
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
    controller(tmp_path, (0, 1), filtered=[5])
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


# ---- bounds


def test_a_chosen_group_that_its_step_left_out_is_lost_and_one_without_a_batch_is_pending(tmp_path: Path) -> None:
    controller(tmp_path, (0, 2), (4, 5), filtered=[3, 8])
    log = trainer(tmp_path, 1, 0)
    log.trained(0, groups(0, 1))
    log.trained(1, groups(4, 5))
    report = audit(tmp_path)
    assert (report.lost, report.pending, report.finished) == ([2], 2, False)
    assert report.problems == [
        "step 0 trained other groups than were chosen for it: 1, 2",
        "group 2 is neither whole in a step nor tombstoned",
    ]
    assert (report.trained, report.steps, report.skipped, report.tombstoned) == (4, 2, 0, {"filtered": 2})


def test_a_group_that_was_overtaken_is_pending(tmp_path: Path) -> None:
    controller(tmp_path, (1, 2))
    trainer(tmp_path, 1, 0).trained(0, groups(1, 2))
    assert (audit(tmp_path).lost, audit(tmp_path).pending, audit(tmp_path).ok) == ([], 1, True)


def test_a_batch_is_smaller_by_what_ended_after_it_was_chosen(tmp_path: Path) -> None:
    controller(tmp_path, (0, 1), poison=[1])
    trainer(tmp_path, 1, 0).trained(0, groups(0))
    report = audit(tmp_path)
    assert report.ok, report.problems


def test_a_group_that_is_chosen_twice_is_a_duplicate(tmp_path: Path) -> None:
    controller(tmp_path, (0, 1), (1, 2))
    trainer(tmp_path, 1, 0).trained(0, groups(0, 1))
    report = audit(tmp_path)
    assert report.duplicated == [1]
    assert "group 1 is chosen for steps 0, 1" in report.problems


def test_tombstones_below_above_and_between_leave_no_group_over(tmp_path: Path) -> None:
    controller(tmp_path, (1, 2), (4, 5), filtered=[0, 3], rejected=[6, 7])
    log = trainer(tmp_path, 1, 0)
    log.trained(0, groups(1, 2))
    log.trained(1, groups(4, 5))
    log.finished(2)
    report = audit(tmp_path)
    assert report.ok, report.problems
    assert (report.pending, report.tombstoned) == (0, {"filtered": 2, "rejected": 2})
    Journal(tmp_path / "journal" / "controller.jsonl").append_tombstones([Tombstone(9, "ended", 2)])
    assert (audit(tmp_path).lost, audit(tmp_path).pending) == ([8], 0)


def test_a_run_that_only_gave_groups_up_is_sound(tmp_path: Path) -> None:
    controller(tmp_path, ended=[0, 1])
    log = trainer(tmp_path, 1, 0)
    log.finished(0)
    report = audit(tmp_path)
    assert report.ok, report.problems
    assert (report.trained, report.steps, report.pending) == (0, 0, 0)


def test_nothing_trained_and_no_journal_is_a_run_that_has_not_begun(tmp_path: Path) -> None:
    trainer(tmp_path, 1, 0)
    assert audit(tmp_path).ok
    assert audit(tmp_path).trainers == 1


def test_a_group_without_a_sample_is_lost_and_not_pending(tmp_path: Path) -> None:
    controller(tmp_path, (0, 1))
    trainer(tmp_path, 1, 0).trained(0, [TrainedGroup(0, ((0, 1),)), *groups(1)])
    report = audit(tmp_path)
    assert (report.lost, report.pending, report.duplicated) == ([0], 0, [])


@pytest.mark.parametrize(
    ("samples", "whole"), [([0, 2], True), ([0, 1, 2], True), ([0], False), ([0, 1], False), ([0, 2, 3], False)]
)
def test_a_short_group_is_whole_with_the_journals_samples_or_with_all(
    tmp_path: Path, samples: list[int], whole: bool
) -> None:
    journal = controller(tmp_path, (0,))
    journal.append_short(0, [0, 2])
    log = EvidenceLog(tmp_path / "evidence", 1)
    log.start(0, batch_groups=1, group_size=3)
    log.trained(0, [TrainedGroup(0, tuple((index, index) for index in samples))])
    assert (audit(tmp_path).lost == []) is whole


def test_a_sample_twice_is_a_duplicate_even_in_a_whole_group(tmp_path: Path) -> None:
    controller(tmp_path, (0, 1))
    trainer(tmp_path, 1, 0).trained(0, [TrainedGroup(0, ((0, 1), (1, 2), (1, 2))), *groups(1)])
    report = audit(tmp_path)
    assert (report.duplicated, report.lost) == ([0], [])
    assert report.problems == ["group 0 holds a sample twice"]


def test_how_a_group_is_there_twice_is_told(run: Path) -> None:
    report = append(run, lambda log: log.trained(3, groups(7, 8)), batch=(7, 8))
    assert "group 7 is trained in steps 2, 3" in report.problems
    Journal(run / "journal" / "controller.jsonl").append_tombstones([Tombstone(8, "ended", 2)])
    assert "group 8 is trained in step 3 and tombstoned (ended)" in audit(run).problems


def test_a_trainer_that_trains_without_a_start_or_below_it_is_found(tmp_path: Path) -> None:
    controller(tmp_path)
    trainer(tmp_path, 1, 0).trained(0, groups(0, 1))
    EvidenceLog(tmp_path / "evidence", 2).trained(1, groups(2, 3))
    report = audit(tmp_path)
    assert "fence 2 trained step 1 without a start" in report.problems
    assert "trainer-00000002.jsonl does not begin with a start" in report.problems
    log = trainer(tmp_path, 3, 3)
    log.trained(2, groups(4, 5))
    log.trained(3, groups(6, 7))
    told = audit(tmp_path).problems
    assert "fence 3 trained step 2 below its start" in told
    assert not any("step 3 below" in problem for problem in told)


def test_a_step_that_two_trainers_of_one_lineage_claim_is_found(tmp_path: Path) -> None:
    controller(tmp_path)
    trainer(tmp_path, 1, 0).trained(0, groups(0, 1))
    trainer(tmp_path, 2, 1).trained(0, groups(2, 3))
    assert "step 0 stands where step 1 should" in audit(tmp_path).problems


def test_a_run_is_finished_when_its_newest_trainer_says_so(tmp_path: Path) -> None:
    controller(tmp_path, (0, 1))
    first = trainer(tmp_path, 1, 0)
    first.trained(0, groups(0, 1))
    first.finished(1)
    assert audit(tmp_path).finished
    trainer(tmp_path, 2, 1)  # it was lengthened
    assert not audit(tmp_path).finished
    assert (audit(tmp_path).trainers, audit(tmp_path).ok) == (2, True)


def test_a_damaged_journal_is_a_problem_with_its_line(run: Path) -> None:
    path = run / "journal" / "controller.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[4] = lines[4].replace(b'"group":2', b'"group":9')
    path.write_bytes(b"\n".join(lines))
    assert "the journal's line 5 is damaged" in audit(run).problems


def test_what_is_no_evidence_is_a_problem(run: Path) -> None:
    EvidenceLog(run / "evidence", 2)._append("guessed", step=1)
    assert audit(run).problems == ["fence 2 wrote 'guessed', which is no evidence"]
