"""Rounds by history in the controller: what is journalled, when groups are admitted, and that no kill changes a row."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from areal.data import JsonlSource, prepare
from areal.ledger.journal import Journal
from areal.rollout.controller import book
from areal.rollout.controller.decisions import JournalRounds
from areal.rollout.controller.inputs import AttachTrainer, PublishWeights
from areal.rollout.controller.rows import PreparedRows
from controller_bench import SETTINGS, Bench, leased, started, weights
from controller_kills import KilledRun

ROWS = 24
IN_ROUNDS = replace(SETTINGS, max_staleness=0, window_groups=8, filter_zero_variance=False, adopt_grace_s=0.0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    rows = [{"prompt": "x" * (1 + number)} for number in range(ROWS)]
    (folder / "rows.jsonl").write_bytes(b"\n".join(orjson.dumps(row) for row in rows))
    prepare(JsonlSource(folder / "rows.jsonl"), folder / "train")
    return folder / "train"


def killed_run(prepared: Path, seed: int) -> KilledRun:
    return KilledRun(IN_ROUNDS, lambda: PreparedRows(prepared, None, 7, rounds=True), random.Random(seed))


def worth(row: bytes) -> int:
    """What `KilledRun` makes the answer's length of."""
    return len(orjson.loads(row)["prompt"]) % 3


def test_nothing_is_admitted_before_the_first_window_is_on_disk() -> None:
    bench = started(IN_ROUNDS, journalling=False)
    (window,) = bench.all(JournalRounds)
    assert window == JournalRounds(0, tuple(range(8)))  # nothing is known of any row: they stay where they are
    assert leased(bench) == []
    bench.write()
    bench.run()
    assert leased(bench) == [0, 1]


def test_the_next_window_waits_for_the_last_group_and_the_ones_behind_for_the_disk() -> None:
    bench = started(IN_ROUNDS)
    bench.trained(3)
    assert max(leased(bench)) == 7
    assert [window.first for window in bench.all(JournalRounds)] == [0, 8]
    bench = started(replace(IN_ROUNDS, window_groups=2))
    bench.journalling = False
    for group in (0, 1):
        bench.done(group)
    bench.ask(AttachTrainer(1, 0))
    bench.ask(PublishWeights(1, weights(1)))
    bench.server(1)
    assert max(leased(bench)) == 3
    for group in (2, 3):
        bench.done(group, version=1)
    bench.ask(PublishWeights(1, weights(2)))
    bench.server(2)
    bench.later(0.5)
    assert max(leased(bench)) == 3
    bench.write()
    bench.run()
    assert max(leased(bench)) == 5


def test_without_rounds_nothing_is_arranged() -> None:
    bench = started(replace(IN_ROUNDS, window_groups=0))
    bench.trained(5)
    assert bench.all(JournalRounds) == []
    assert max(leased(bench)) > 8


def test_a_restarted_controller_goes_on_in_the_window_that_the_journal_has() -> None:
    rebuilt = replace(Bench(IN_ROUNDS).rebuilt, rounds_to=8, restarted=True)
    bench = started(IN_ROUNDS, rebuilt=rebuilt)
    bench.later(1.0)
    assert bench.all(JournalRounds) == []
    assert leased(bench) == [0, 1]


def test_a_job_that_has_rounds_since_its_restart_begins_behind_what_workers_may_hold() -> None:
    bench = started(IN_ROUNDS, rebuilt=replace(Bench(IN_ROUNDS).rebuilt, restarted=True))
    bench.later(1.0)
    (window,) = bench.all(JournalRounds)
    assert window.first >= 1024


@pytest.mark.parametrize("seed", range(8))
def test_a_controller_killed_at_any_point_gives_no_group_another_row_and_no_row_another_turn(
    seed: int, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(book, "_CLAIMED", 1)
    run = killed_run(prepared, seed)
    run.start()
    for _ in range(36):
        run.step_on(share=0.03)
    assert run.fence > 1
    state = Journal(Path("journal"), run.lines).replay()
    assert sum(list(places) != sorted(places) for _, places in state.rounds) >= 1
    given = [run.rows[group] for group in range(72)]
    for epoch in range(3):
        assert set(Counter(given[epoch * ROWS : (epoch + 1) * ROWS]).values()) == {1}
    last = PreparedRows(prepared, None, 7, rounds=True)
    last.replay(state.pools, state.rounds)
    assert {group: last.row(group) for group in run.rows} == run.rows


def test_rows_whose_answers_had_the_same_length_come_in_one_batch(prepared: Path) -> None:
    run = killed_run(prepared, 3)
    run.start()
    for _ in range(48):
        run.step_on(share=0.0)
    alike = [worth(run.rows[2 * step]) == worth(run.rows[2 * step + 1]) for step in range(48)]
    assert sum(alike[12:]) >= 24  # of 36: a class with an odd number of rows in a window shares a batch with the next
    assert sum(alike[:12]) <= 7  # nothing was known of their rows
