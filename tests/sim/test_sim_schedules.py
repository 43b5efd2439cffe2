"""Schedules of the real cores keep the promises; what a failing one prints can be replayed.

`AREAL_SIM_SCHEDULES` is their number: `make nightly` runs a thousand, `make chaos` a hundred thousand.
"""

from __future__ import annotations

import os

import pytest
from simulation.run import simulate
from simulation.scenario import FaultKind, draw
from simulation.schedules import main, run_schedules, story

SCHEDULES = int(os.environ.get("AREAL_SIM_SCHEDULES", "200"))


@pytest.mark.timeout(2400)  # at the lowest priority, beside other tiers
def test_schedules_keep_the_promises() -> None:
    report = run_schedules(first_seed=0, count=SCHEDULES, jobs=2)
    assert report.ok, report.text()
    assert report.groups > 10 * SCHEDULES


def test_a_schedule_is_the_same_every_time() -> None:
    once, again = simulate(draw(4242), trace=True), simulate(draw(4242), trace=True)
    assert once == again
    assert len(once.trace) > 20


def test_schedules_hold_every_kind_of_fault_and_setting() -> None:
    scenarios = [draw(seed) for seed in range(2000)]
    struck = {fault.kind for scenario in scenarios for fault in scenario.faults}
    assert struck == set(FaultKind)
    assert {scenario.max_staleness for scenario in scenarios} == {0, 1, 2, 3, 4}
    assert max(scenario.filter_share for scenario in scenarios) == 0.6
    by_turns = [scenario for scenario in scenarios if scenario.shared]
    assert len(by_turns) > 100
    assert {scenario.max_staleness for scenario in by_turns} == {0, 1}


def test_a_seeds_story_ends_with_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines = story(7)
    assert lines[0].startswith("seed 7: ")
    assert lines[-1] == "replay: make sim SEED=7"
    assert main(["--replay", "7"]) == 0
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize("options", [["--schedules", "-1"], ["--schedules", "0"], ["--jobs", "0"], ["--first", "-1"]])
def test_a_simulation_of_nothing_is_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert "at least" in capsys.readouterr().err
