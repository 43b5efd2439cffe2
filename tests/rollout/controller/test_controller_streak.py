"""Groups that end without training: what is counted, how admission slows down, when it is a stall."""

from __future__ import annotations

from dataclasses import replace

import areal
import pytest
from areal.errors import Kind
from areal.ledger.values import TombstoneReason
from areal.observe.live import Idle, IdleCause
from areal.rollout.contract.values import FailureKind, SampleFailure
from areal.rollout.controller.gauges import idle_of
from areal.rollout.controller.groups import GroupVerdict
from areal.rollout.controller.streak import FAILED_TO_PAUSE, FAILED_TO_STALL, WINDOW, BadRows, Streak, headline
from controller_bench import SETTINGS, Bench, leased, started

TRACEBACK = """exception: KeyError: 'answer'
Traceback (most recent call last):
  File "/lib/runner.py", line 9, in run
  File "/home/me/recipe.py", line 12, in reward
KeyError: 'answer'"""
WIDE = replace(SETTINGS, max_steps=1000, max_staleness=900, max_filtered_per_step=4096)


def fail(bench: Bench, kind: FailureKind, *groups: int) -> None:
    bench.worker(failures=tuple(SampleFailure(group, 0, 1, kind, TRACEBACK[11:]) for group in groups))


def fail_all(bench: Bench, seconds: float) -> int:
    """Every lease fails at once for so long; the number of groups that failed."""
    failed = 0
    until = bench.now + seconds
    while bench.now < until:
        new = leased(bench)[failed:]
        fail(bench, FailureKind.EXCEPTION, *new)
        failed += len(new)
        bench.later(0.25)
    return failed


def test_rejected_groups_stall_with_the_newest_exception_and_its_place() -> None:
    bench = started(WIDE)
    failed = fail_all(bench, 60.0)
    words = f"{failed} groups in a row were rejected: KeyError: 'answer' (recipe.py:12)"
    assert (bench.core.stalled, bench.core.stalled_by) == (words, Kind.DATA)
    assert FAILED_TO_STALL <= failed < 500, "admission slows down"


def test_what_befalls_groups_in_a_row_is_told_before_it_is_a_stall() -> None:
    bench = started(WIDE)
    first, *others = leased(bench)[:FAILED_TO_PAUSE]
    fail(bench, FailureKind.REJECTED, *others)
    assert idle_of(bench.core) is None or bench.idle.cause is not IdleCause.UNTRAINED_GROUPS
    fail(bench, FailureKind.EXCEPTION, first)
    words = f"{FAILED_TO_PAUSE} groups in a row were rejected: KeyError: 'answer' (recipe.py:12)"
    assert (bench.idle, bench.core.stalled) == (Idle(IdleCause.UNTRAINED_GROUPS, words), "")
    bench.done(leased(bench)[-1])
    assert idle_of(bench.core) is None or bench.idle.cause is not IdleCause.UNTRAINED_GROUPS


def test_admission_goes_on_slowly_and_one_complete_group_ends_the_stall() -> None:
    bench = started(WIDE)
    fail_all(bench, 60.0)
    before = len(leased(bench))
    bench.later(20.0)
    new = leased(bench)[before:]
    assert 0 < len(new) <= 64
    bench.done(new[0])
    assert not bench.core.stalled
    bench.later(0.5)
    assert len(leased(bench)) >= before + 90, "as many as before"


def test_groups_that_the_job_turns_down_stall_at_its_limit_and_are_not_slowed_down() -> None:
    bench = started(replace(WIDE, max_filtered_per_step=200))
    fail(bench, FailureKind.REJECTED, *leased(bench))
    assert not bench.core.stalled
    assert len(leased(bench)) == 200
    fail(bench, FailureKind.REJECTED, *leased(bench)[100:])
    assert bench.core.stalled.startswith("200 groups in a row were rejected: ")
    fail(bench, FailureKind.REJECTED, *leased(bench)[200:])  # leased while the last ones were on their way to disk
    assert len(leased(bench)) == 300


@pytest.mark.parametrize("reason", [TombstoneReason.REJECTED, TombstoneReason.DEADLINE, TombstoneReason.INFRA])
def test_every_failure_counts_but_the_end_of_the_run(reason: TombstoneReason) -> None:
    streak = Streak()
    for _ in range(FAILED_TO_STALL):
        streak.ended(0.0, GroupVerdict(TombstoneReason.ENDED))
    assert not streak.stall(1)
    for _ in range(FAILED_TO_STALL):
        streak.ended(0.0, GroupVerdict(reason, "why"))
    assert streak.stall(0).startswith("64 groups in a row ")
    assert streak.stall(0).endswith(": why")
    assert streak.by_infrastructure == (reason is TombstoneReason.INFRA)
    streak.ended(0.0, GroupVerdict(TombstoneReason.FILTERED, "same", chosen=True))
    each = ", ".join(sorted(["1 filtered", f"64 {reason}"], key=lambda count: count.split()[1]))
    assert streak.stall(0) == f"65 groups in a row ended without training ({each}): same"


def test_pauses_double() -> None:
    streak, now, pauses = Streak(), 0.0, []
    for _ in range(FAILED_TO_PAUSE):
        streak.ended(now, GroupVerdict(TombstoneReason.REJECTED))
    for _ in range(4):
        began = now
        while not (count := streak.admissible(now, 0, 1000)):
            now += 0.125
        pauses.append(now - began)
        streak.admitted(count)
        for _ in range(count):
            streak.ended(now, GroupVerdict(TombstoneReason.REJECTED))
    assert pauses == [0.25, 0.5, 1.0, 2.0]


def test_the_headline_of_a_detail_is_its_first_line_and_its_innermost_place() -> None:
    assert headline(TRACEBACK) == "KeyError: 'answer' (recipe.py:12)"
    assert headline("exception: \x1b[2J" + 1000 * "x") == " [2J" + 296 * "x", "what users raise reaches terminals"
    assert headline("2 samples in 60 s") == "2 samples in 60 s"


def test_a_headline_names_the_row_and_the_users_line_not_ours() -> None:
    ours = (
        f'{TRACEBACK}\n  File "{areal.__file__.removesuffix("__init__.py")}rollout/worker/episode_engine.py", line 250'
    )
    assert headline(ours, "train.jsonl:7") == "train.jsonl:7: KeyError: 'answer' (recipe.py:12)"
    told = "exception: the recipe's reward returned None (recipe.py:3)\n" + ours.partition("\n")[2]
    assert headline(told) == "the recipe's reward returned None (recipe.py:3)"


def test_a_run_that_only_fails_says_of_which_row() -> None:
    bad = BadRows()
    for number in range(8):
        bad.ended(GroupVerdict(TombstoneReason.REJECTED, TRACEBACK), f"train.jsonl:{number}")
    assert "the newest: train.jsonl:7: KeyError: 'answer' (recipe.py:12)" in bad.excess(0.25)


def spoil(bench: Bench, every: int, groups: int) -> None:
    """Groups end as they are leased: each `every`th one raises, the others are trained."""
    for group in range(groups):
        if group not in leased(bench):
            return
        if group % every:
            bench.done(group)
        else:
            fail(bench, FailureKind.EXCEPTION, group)


def test_a_few_bad_rows_cost_their_groups_only() -> None:
    bench = started(replace(WIDE, max_bad_row_share=0.25))
    spoil(bench, every=5, groups=600)
    assert not bench.core.stalled
    assert len(bench.ledger.closed) == 600


def test_too_large_a_share_of_bad_rows_stops_the_run_and_says_so() -> None:
    bench = started(replace(WIDE, max_bad_row_share=0.25))
    spoil(bench, every=3, groups=10_000)
    assert "(33%) failed by their rows or by the recipe, more than rollout.maxBadRowShare (25%)" in bench.core.stalled
    assert bench.core.stalled.endswith("the newest: KeyError: 'answer' (recipe.py:12)")
    assert len(bench.ledger.closed) < 1000, "nothing more is admitted"


def test_what_the_job_turns_down_and_faults_of_others_are_no_bad_rows() -> None:
    rows = BadRows()
    for _ in range(300):
        rows.ended(GroupVerdict(TombstoneReason.FILTERED, "same", chosen=True))
        rows.ended(GroupVerdict(TombstoneReason.REJECTED, "None", chosen=True))
        rows.ended(GroupVerdict(TombstoneReason.INFRA, "connection refused"))
        rows.completed()
    assert not rows.excess(0.001)


def test_rows_that_were_bad_long_ago_are_forgotten() -> None:
    rows = BadRows()
    for _ in range(WINDOW):
        rows.ended(GroupVerdict(TombstoneReason.REJECTED, "why"))
    for _ in range(WINDOW // 2):
        rows.completed()
    assert rows.excess(0.45).startswith(f"256 of the newest {WINDOW} groups (50%)")
    for _ in range(WINDOW // 2):
        rows.completed()
    assert not rows.excess(0.001)
