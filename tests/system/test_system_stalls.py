"""The stall matrix: `areal why` names the cause of a fault within ten seconds, and none while nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.job_run import ROOT, SMALL, JobRun
from support.stall_matrix import BLOCKING, PATIENCE_S, WITHIN_S, Cell, Matrix, cells, table

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

FEW = ("SIGSTOP × engine", "deadlock in user code × reward")  # of each landing
MORE = ("SIGSTOP × trainer", "blocked event loop × worker")  # of each night; `make stalls`: all
SHARE = 0.95
HEALTHY_S = 60.0


@pytest.fixture
def run(digits: Path, tmp_path: Path) -> Iterator[JobRun]:
    """A small run without an end, whose processes can be blocked."""
    environment = {"PYTHONPATH": str(BLOCKING), "STALL_FLAG": str(tmp_path / "block")}
    endless = ("algorithm.maxSteps=100000", "evaluation.intervalSteps=100000")
    overrides = [*SMALL, *endless, f"recipe.file={BLOCKING / 'recipe.py'}"]
    made = JobRun(ROOT / "examples/quickstart.yaml", tmp_path / "run", overrides, environment=environment).start()
    yield made
    made.stop()


@pytest.mark.parametrize(
    "names", [pytest.param(FEW, id="few"), pytest.param(MORE, id="more", marks=pytest.mark.nightly)]
)
def test_the_right_cause_is_named_of_each_fault(
    run: JobRun, tmp_path: Path, pytestconfig: pytest.Config, names: tuple[str, ...]
) -> None:
    matrix = Matrix(run, tmp_path / "block")
    run.wait_for("step 1", lambda: matrix.step() >= 1, timeout_s=240)
    everything = pytestconfig.getoption("--all-stalls")
    chosen: list[Cell] = [cell for cell in cells() if everything or cell.name in names]
    heard = [answer for answer in matrix.listen(HEALTHY_S if everything else 0.0) if answer.cause != "none"]
    within_s = WITHIN_S if everything else PATIENCE_S
    outcomes = [matrix.try_cell(cell, within_s) for cell in chosen]
    print(f"\n{table(outcomes)}\n  false answers while nothing was wrong: {[answer.sentence for answer in heard]}")
    assert heard == []
    assert len(chosen) >= len(names)
    assert sum(one.right for one in outcomes) >= SHARE * len(outcomes), table(outcomes)
