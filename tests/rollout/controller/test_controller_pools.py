"""Difficulty pools in the controller: what is journalled, when rows are judged, and that no kill changes a row."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from areal.data import JsonlSource, prepare
from areal.ledger.journal import Journal, MeasuredGroup, PoolChange
from areal.rollout.contract.values import GroupInHand
from areal.rollout.controller import book
from areal.rollout.controller.decisions import Decision, JournalBatch, JournalPools, JournalTombstone
from areal.rollout.controller.inputs import AdvanceTrainer, AttachTrainer, TrainerBeat, TrainerReport
from areal.rollout.controller.rows import PreparedRows
from areal.spec.sources import DifficultyPools
from controller_bench import SETTINGS, Bench, leased, started
from controller_kills import KilledRun

POOLED = replace(SETTINGS, pass_score=1.0, adopt_grace_s=0.0)
RULE = DifficultyPools(min_tries=2, hard_up_to=0.0, revisit_epochs=3)


def committed(bench: Bench, group: int, step: int) -> list[Decision]:
    return bench.take(TrainerBeat(TrainerReport(1, step, step)))


def test_what_a_batch_measured_is_in_the_journal_with_the_cursor_that_took_it() -> None:
    bench = started(POOLED)
    bench.ask(AttachTrainer(1, 0))
    bench.done(0, (1.0, 0.0))
    bench.done(1, (0.5, 2.0))
    bench.ask(AdvanceTrainer(1, 0, 2))
    assert bench.all(JournalBatch)[-1].measured == ((0, 1, 2), (1, 1, 2))


def test_a_filtered_group_is_measured_by_its_tombstone_and_a_rejected_one_is_not() -> None:
    bench = started(POOLED)
    bench.done(0, (1.0, 1.0))
    assert bench.all(JournalTombstone) == [
        JournalTombstone(0, "filtered", "all samples earned the same reward", passes=2, tries=2)
    ]


def test_without_pools_nothing_is_measured_and_nothing_changes() -> None:
    bench = started()
    bench.trained(1)
    committed(bench, 2, 1)
    assert bench.all(JournalBatch)[-1].measured == ()
    assert bench.all(JournalPools) == []


def test_rows_are_judged_at_a_checkpoint_for_groups_that_nobody_has_yet() -> None:
    bench = started(POOLED)
    bench.trained(2)
    assert bench.all(JournalPools) == []
    admitted = max(leased(bench)) + 1
    committed(bench, 4, 2)
    assert bench.all(JournalPools) == [JournalPools(4, admitted)]
    committed(bench, 4, 2)
    assert len(bench.all(JournalPools)) == 1


def test_nothing_is_admitted_until_a_judgement_is_on_disk() -> None:
    bench = started(replace(POOLED, max_concurrent=3))
    bench.trained(1)
    bench.journalling = False
    committed(bench, 2, 1)
    before = max(leased(bench))
    for group in sorted(set(leased(bench)) - {0, 1}):
        bench.done(group, version=1)
    assert max(leased(bench)) == before
    bench.write()
    bench.run()
    assert max(leased(bench)) > before


def test_a_restarted_controller_leaves_out_groups_that_only_workers_may_know_and_judges_what_it_missed() -> None:
    rebuilt = Bench().rebuilt
    bench = started(POOLED, rebuilt=replace(rebuilt, pooled=0, pools_from=7, restarted=True))
    bench.trained(1)
    committed(bench, 2, 1)
    (change,) = bench.all(JournalPools)
    assert change.committed == 2
    assert change.from_group >= 1024
    held = GroupInHand(change.from_group, (0,), 1, 1, False)
    bench.worker("late", held=(held,))
    assert change.from_group not in bench.core.book.groups


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pools")
    rows = [{"prompt": "x" * (1 + number)} for number in range(12)]
    (folder / "rows.jsonl").write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    prepare(JsonlSource(folder / "rows.jsonl"), folder / "train")
    return folder / "train"


def killed_run(prepared: Path, seed: int) -> KilledRun:
    return KilledRun(POOLED, lambda: PreparedRows(prepared, None, 7, RULE), random.Random(seed))


@pytest.mark.parametrize("seed", range(8))
def test_a_controller_killed_at_any_point_gives_no_group_another_row(
    seed: int, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "_CLAIMED", 1)  # so that rows judged after a kill are met within the test
    run = killed_run(prepared, seed)
    run.start()
    for _ in range(30):
        run.step_on(share=0.15)
    state = Journal(Path("journal"), run.lines).replay()
    changes = [each for each in state.pools if isinstance(each, PoolChange)]
    assert run.fence > 1
    assert sum(change.from_group < 50 for change in changes) > 3
    assert changes
    assert [change.from_group for change in changes] == sorted(change.from_group for change in changes)
    assert {each.group for each in state.pools if isinstance(each, MeasuredGroup)} == set(range(60))
    last = PreparedRows(prepared, None, 7, RULE)
    last.replay(state.pools)
    assert {group: last.row(group) for group in run.rows} == run.rows


def test_without_kills_learned_and_hopeless_rows_are_soon_met_no_more(prepared: Path) -> None:
    run = killed_run(prepared, 1)
    run.start()
    for _ in range(30):
        run.step_on(share=0.0)
    learned = {orjson.dumps({"prompt": "x" * (1 + number)}) for number in range(12) if (1 + number) % 3 != 1}
    late = [run.rows[group] for group in range(40, 60)]
    assert sum(row in learned for row in late) < len(late) * 0.6
