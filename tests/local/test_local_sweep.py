"""`areal run --sweep`: which variants there are, what is refused before the first, what a second start does."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from areal.admit.resolve import resolve
from areal.errors import ConfigError, DataError, ExitCode
from areal.local.comparison import ComparedRun, read_run
from areal.local.staging import StagingRequest
from areal.local.sweep import run_sweep, split, variants
from areal.plan import write_run
from areal.record.run_rows import HeldOut
from areal.spec import load_job
from rich.console import Console
from support.run_summary import run_summary
from support.tiny_job import make_tiny_job


class Runs:
    """Stands for runs: notes what was asked, and writes what a finished one writes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[str, ...], bool]] = []
        self.ends: dict[str, Any] = {}

    def __call__(self, request: StagingRequest, console: Console) -> int:
        place = request.run_dir
        assert place is not None
        self.asked.append((place.name, tuple(request.overrides), request.resume))
        end = self.ends.get(place.name, "Complete")
        if not request.resume:
            job = load_job(request.job_file, request.overrides)
            write_run(resolve(job, run_dir=place, base_dir=request.base_dir), recipe=None)
        if isinstance(end, Exception):
            raise end
        held = [{"version": v, "mean": 0.2 + 0.1 * v, "rows": 9, "at": 1.0} for v in range(3)]
        (place / "evaluations.jsonl").write_text("".join(json.dumps(one) + "\n" for one in held))
        (place / "summary.json").write_text(
            json.dumps(run_summary(status=end, steps=4 if end == "Complete" else 1, wallSeconds=61.0))
        )
        return int(ExitCode.DONE if end == "Complete" else ExitCode.DRAINED)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make_tiny_job(tmp_path)


def sweep(job: Path, wanted: list[Any], runs: Runs, **flags: Any) -> tuple[int, str]:
    console = Console(file=StringIO(), width=200)
    code = run_sweep(StagingRequest(job, (), job.parent / "sweep", **flags), wanted, console, runs)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


RATES = ["optimizer.learningRate=1e-5,1e-4"]


def test_every_combination_with_every_seed_has_a_name_of_its_own():
    found = variants(["algorithm.name=GRPO,PPO", "optimizer.betas=[0.9,0.99],[0.9,0.999]"], range(2))
    assert len(found) == 8
    assert found[0].name == "name-GRPO_betas--0.9-0.99-_seed-0"
    assert found[-1].overrides == ("algorithm.name=PPO", "optimizer.betas=[0.9,0.999]", "seed=1")
    assert split("{a: 1, b: 2},3") == ["{a: 1, b: 2}", "3"]


@pytest.mark.parametrize("text", ["algorithm.name", "algorithm.name=", "=1,2", "algorithm.name=a,,b"])
def test_a_sweep_without_values_is_refused(text):
    with pytest.raises(ConfigError, match="names no values"):
        variants([text])


def test_values_given_twice_and_too_many_runs_are_refused():
    with pytest.raises(ConfigError, match="the same"):
        variants(["seed=1,1"])
    with pytest.raises(ConfigError, match="101 runs"):
        variants(["seed=" + ",".join(map(str, range(101)))])


def test_an_unknown_field_or_a_refused_value_ends_the_sweep_before_its_first_run(job):
    runs = Runs()
    with pytest.raises(ConfigError, match="learningRate"):
        sweep(job, variants(["optimizer.learningRat=1e-5,1e-4"]), runs)
    with pytest.raises(ConfigError, match="maxSteps-zero"):
        sweep(job, variants(["algorithm.maxSteps=4,zero"]), runs)
    assert runs.asked == []
    assert not (job.parent / "sweep").exists()


def test_variants_run_one_after_the_other_and_are_compared(job):
    runs = Runs()
    code, said = sweep(job, variants(RATES), runs)
    assert code == 0
    assert [(name, overrides[-1]) for name, overrides, _ in runs.asked] == [
        ("learningRate-1e-5", "optimizer.learningRate=1e-5"),
        ("learningRate-1e-4", "optimizer.learningRate=1e-4"),
    ]
    assert "learningRate-1e-5" in said
    directory = job.parent / "sweep"
    rows = json.loads((directory / "comparison.json").read_text())
    assert [row["heldOut"][-1]["mean"] for row in rows] == pytest.approx([0.4, 0.4])
    assert (
        "| learningRate-1e-4 | Complete | 0.200 | 0.400 | 0.400 | 4 | 1m01s |"
        in (directory / "comparison.md").read_text()
    )
    picture = (directory / "comparison.svg").read_text()
    assert picture.startswith("<svg xmlns=")
    assert picture.count("<polyline") == 2


def test_a_stopped_sweep_goes_on_where_it_was(job):
    runs, wanted = Runs(), variants(["optimizer.learningRate=1e-5,1e-4,1e-3"])
    runs.ends["learningRate-1e-4"] = "Stopped"
    assert sweep(job, wanted, runs)[0] == ExitCode.DRAINED
    assert [name for name, *_ in runs.asked] == ["learningRate-1e-5", "learningRate-1e-4"]
    with pytest.raises(ConfigError, match="--resume"):
        sweep(job, wanted, runs)
    again = Runs()
    assert sweep(job, wanted, again, resume=True)[0] == 0
    assert [(name, resume) for name, _, resume in again.asked] == [
        ("learningRate-1e-4", True),
        ("learningRate-1e-3", False),
    ]


def test_a_failed_variant_does_not_end_the_sweep_and_is_told(job):
    runs = Runs()
    runs.ends["learningRate-1e-5"] = DataError("no rows", fix="add some")
    code, said = sweep(job, variants(RATES), runs)
    assert code == ExitCode.DATA
    assert len(runs.asked) == 2
    assert "learningRate-1e-5 failed: no rows" in said


def test_runs_of_another_job_in_the_directory_are_refused(job):
    sweep(job, variants(RATES), Runs())
    changed = [one.__class__(one.name, (*one.overrides, "algorithm.groupSize=4")) for one in variants(RATES)]
    with pytest.raises(ConfigError, match="groupSize"):
        sweep(job, changed, Runs(), resume=True)


def test_a_run_that_has_not_begun_waits(tmp_path):
    one = read_run(tmp_path / "a")
    assert one.row == ("a", "waiting", "—", "—", "—", "0", "—")
    assert ComparedRun("b", "Complete", 2, 5.0, (HeldOut(0, 0.5),)).row[2:5] == ("0.500",) * 3
