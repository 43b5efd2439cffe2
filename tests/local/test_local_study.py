"""`areal study`: which variants there are, what they cost, which go on, and how they are ranked."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from areal.admit.resolve import resolve
from areal.cli.main import app
from areal.errors import ConfigError, ExitCode
from areal.local.staging import StagingRequest
from areal.local.study import StudyPlan, StudyRow, etas_of, grid, run_study, staleness
from areal.plan import ResolvedJob, write_run
from areal.spec import load_job
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats
from support.run_summary import run_summary
from support.tiny_job import make_tiny_job
from typer.testing import CliRunner


class Scored:
    """Stands for runs: a run of more steps scores what its variant and seed are worth."""

    def __init__(self, worth: Any) -> None:
        self.asked: list[tuple[str, int]] = []
        self.worth = worth

    def __call__(self, request: StagingRequest, console: Console) -> int:
        place = request.run_dir
        assert place is not None
        job = load_job(request.job_file, request.overrides)
        steps = job.spec.algorithm.max_steps
        self.asked.append((place.name, steps))
        write_run(resolve(job, run_dir=place, base_dir=request.base_dir, resume=request.resume), recipe=None)
        score = self.worth(job)
        row = {"version": steps, "mean": score, "rows": 9, "at": 1.0}
        with (place / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        (place / "summary.json").write_text(json.dumps(run_summary(status="Complete", steps=steps, wallSeconds=60.0)))
        return int(ExitCode.DONE)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make_tiny_job(tmp_path)


def study(job: Path, plan: StudyPlan, runs: Scored, **flags: Any) -> str:
    console = Console(file=StringIO(), width=200)
    request = StagingRequest(job, ("algorithm.maxSteps=8",), job.parent / "study", **flags)
    assert run_study(request, plan, console, runs) == ExitCode.DONE
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_ablation_runs_every_eta_both_ways_with_every_seed_and_ranks_them(job):
    runs = Scored(lambda job: 0.9 - 0.01 * job.spec.algorithm.max_staleness**0.5 + 0.001 * job.spec.seed)
    said = study(job, staleness(2, (0, 4)), runs)
    assert "12 runs (6 variants, 2 seeds), 96 steps in all" in said
    assert len(runs.asked) == 12
    rows = json.loads((job.parent / "study/study.json").read_text())
    assert {row["name"] for row in rows[:2]} == {"eta-0_naive", "eta-0_decoupled"}
    assert rows[-1]["name"].startswith("eta-unbounded_")
    unbounded = ResolvedJob.load(job.parent / "study/eta-unbounded_naive_seed-0").job.spec
    assert unbounded.algorithm.max_staleness == unbounded.algorithm.max_steps == 8
    assert rows[0]["scores"] == pytest.approx([0.9, 0.901])
    picture = (job.parent / "study/study.svg").read_text()
    assert "decoupled, 95 % low" in picture
    assert "η: 0, 4, ∞" in picture
    again = Scored(lambda job: math.nan)
    study(job, staleness(2, (0, 4)), again, resume=True)
    assert again.asked == []


def test_halving_stops_the_worse_half_early_and_the_best_goes_on_to_all_steps(job):
    rates = [1e-5, 2e-5, 3e-5, 4e-5]
    runs = Scored(lambda job: job.spec.optimizer.learning_rate * 1e4)
    plan = grid(["optimizer.learningRate=" + ",".join(map(str, rates))], 1, halving=True)
    said = study(job, plan, runs)
    by_steps = {steps: {name for name, at in runs.asked if at == steps} for _, steps in runs.asked}
    assert {steps: len(names) for steps, names in by_steps.items()} == {2: 4, 4: 2, 8: 1}
    assert by_steps[8] == {"learningRate-4e-05_seed-0"}
    assert f"{2 * 4 + 2 * 2 + 4} steps in all" in said
    rows = json.loads((job.parent / "study/study.json").read_text())
    assert [row["name"] for row in rows] == [f"learningRate-{rate}" for rate in reversed(rates)]


def test_a_resumed_halving_study_asks_no_round_again_and_drops_whom_it_dropped(job):
    def worth(job):
        """The best of the first round is the worst after it, and falls while it is trained on."""
        rate, steps = job.spec.optimizer.learning_rate * 1e5, job.spec.algorithm.max_steps
        return rate if steps == 2 else -rate

    plan = grid(["optimizer.learningRate=1e-05,2e-05,3e-05,4e-05"], 1, halving=True)

    class Broken(Scored):
        def __call__(self, request, console):
            code = super().__call__(request, console)
            if len(self.asked) < 5:
                return code
            killed = request.run_dir / "metrics.jsonl"
            killed.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(3)))
            (request.run_dir / "summary.json").unlink()  # the first of round two dies at step 3 of 4
            raise KeyboardInterrupt

    first = Broken(worth)
    with pytest.raises(KeyboardInterrupt):
        study(job, plan, first)
    again = Scored(worth)
    study(job, plan, again, resume=True)
    assert {steps for _, steps in again.asked} == {4, 8}, "round one is over"
    assert {name for name, _ in again.asked} == {"learningRate-3e-05_seed-0", "learningRate-4e-05_seed-0"}


def test_a_draw_is_of_the_grid_and_the_same_each_time():
    sweeps = ["algorithm.groupSize=2,4,8", "algorithm.clipLow=0.1,0.2,0.3"]
    drawn = grid(sweeps, 1, draw=4).variants
    assert drawn == grid(sweeps, 1, draw=4).variants
    assert len(drawn) == 4
    assert set(drawn) < set(grid(sweeps, 1).variants)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_an_interval_is_student_s(scores):
    row = StudyRow("x", tuple(scores), 1.0)
    low, high = stats.t.interval(0.95, len(scores) - 1, row.mean, stats.sem(scores) or 1e-12)
    assert row.half == pytest.approx((high - low) / 2, rel=0.01, abs=1e-9)


def test_a_variant_that_failed_in_an_early_round_is_the_study_s_exit_code(job):
    runs = Scored(lambda job: job.spec.optimizer.learning_rate)

    def failing(request, console):
        code = runs(request, console)
        return int(ExitCode.DATA) if "learningRate-1e-05" in str(request.run_dir) else code

    plan = grid(["optimizer.learningRate=1e-05,2e-05"], 1, halving=True)
    request = StagingRequest(job, ("algorithm.maxSteps=8",), job.parent / "study")
    assert run_study(request, plan, Console(file=StringIO()), failing) == ExitCode.DATA


def test_a_training_on_fixed_rows_is_refused_in_words(job, tmp_path):
    sft = Path(__file__).parents[2] / "examples/sft.yaml"
    rows = tmp_path / "rows.jsonl"  # the example's own rows are made by its script, which no test may count on
    rows.write_text(json.dumps({"prompt": "2 + 3 =", "answer": "5"}) + "\n")
    own = (f"model.path={job.parent}/model", f"dataset.train.jsonl={rows}", f"dataset.evaluation.jsonl={rows}")
    plan = grid(["optimizer.learningRate=1e-5,2e-5"], 1)
    with pytest.raises(ConfigError, match="a training of SFT"):
        run_study(StagingRequest(sft, own, tmp_path / "s"), plan, Console(file=StringIO()))


def test_the_ranking_is_printed_for_scripts(job, capsys):
    request = StagingRequest(job, ("algorithm.maxSteps=8",), job.parent / "study")
    runs = Scored(lambda job: job.spec.optimizer.learning_rate)
    plan = grid(["optimizer.learningRate=1e-05,2e-05"], 1)
    run_study(request, plan, Console(file=StringIO()), runs, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["scores"]) for row in told] == [
        ("learningRate-2e-05", [2e-05]), ("learningRate-1e-05", [1e-05]),
    ]  # fmt: skip


def test_what_is_no_study_is_refused(job):
    with pytest.raises(ConfigError, match="names no numbers"):
        etas_of("0,many")
    with pytest.raises(ConfigError, match="beyond"):
        etas_of("1000")
    for words in (["staleness", str(job), "--sweep", "seed=1,2"], ["sweep", str(job)], ["toy", str(job)]):
        assert isinstance(CliRunner().invoke(app, ["study", *words]).exception, ConfigError)
