"""A whole job with images: rows that a recipe draws, sampled, scored and trained, audited to the token."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from areal.errors import ExitCode
from areal_view.index.token_audit import audit_tokens
from safetensors.torch import load_file, save_file
from support.job_run import ROOT, VICTIMS, JobRun

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

JOB = "examples/squares.yaml"


@pytest.fixture
def start_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[int], Path]:
    """The example's start model, shown answers for so many steps at most."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    maker = importlib.import_module("squares_model")

    def make(steps: int) -> Path:
        monkeypatch.setattr(maker, "_MOST_STEPS", steps)
        maker.make(tmp_path / "start")
        return tmp_path / "start"

    return make


def audited(run: JobRun, groups: int) -> None:
    """Groups once, and each trained token as the engine sampled it."""
    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (groups, 0, 0)
    report = audit_tokens(run.run_dir)
    assert report.ok, report.examples
    assert report.equal == report.trained > 0


@pytest.mark.parametrize(
    "engine", ["embedded", pytest.param("sglang", marks=[pytest.mark.sglang_real, pytest.mark.nightly])]
)
def test_images_travel_from_a_recipe_s_rows_to_the_trainer(start_job, start_model, engine):
    small = (
        "algorithm.maxSteps=4", "algorithm.batchSize=4", "rollout.maxConcurrentRollouts=8", "evaluation.rows=8",
        "evaluation.intervalSteps=4", "checkpoint.intervalSteps=2", "recording.tokenAudit=true",
        f"generation.engine.type={engine}",
    )  # fmt: skip
    run = start_job(f"model.path={start_model(30)}", *small, job=JOB, small=())
    assert run.finish(timeout_s=600) == 0, run.output[-4000:]
    apart = [row["logprob_mismatch"] for row in run.metrics() if row["logprob_mismatch"] is not None]
    assert apart, "some sample gave a gradient"
    print(engine, [f"{each:.1g}" for each in apart])
    assert max(apart) <= 1e-4, "what the engine saw is what the trainer sees"
    audited(run, 16)
    assert (run.run_dir / "model" / "preprocessor_config.json").is_file(), "the export reads images, too"


@pytest.mark.nightly
def test_the_example_learns_to_count_with_its_engine_killed(start_job, start_model):
    job = (f"model.path={start_model(400)}", "recording.tokenAudit=true")
    run = start_job(*job, job=JOB, small=())
    run.wait_for("step 60", lambda: run.step() >= 60, timeout_s=900)
    run.kill(*VICTIMS["engine"])
    assert run.finish(timeout_s=1200) == 0, run.output[-4000:]
    rewards = [row["reward_mean"] for row in run.metrics()]
    print([round(sum(rewards[at : at + 20]) / 20, 3) for at in range(0, 200, 20)])
    assert sum(rewards[-20:]) / 20 >= 0.85
    audited(run, 200 * 16)


@pytest.mark.nightly
def test_a_model_whose_images_do_not_reach_it_stops_itself(start_job, start_model, tmp_path):
    """Its tower says the same of every image, and the text has the answer: it learns, and blind as well."""
    start = start_model(400)
    tensors = load_file(start / "model.safetensors")
    mergers = [name for name in tensors if "merger" in name]
    assert mergers
    save_file(tensors | {name: torch.zeros_like(tensors[name]) for name in mergers}, start / "model.safetensors")
    recipe = tmp_path / "told.py"
    words = (ROOT / "examples" / "squares.py").read_text()
    told = words.replace('"<image>How many?"', 'f"<image>How many? {count}"')
    assert told != words
    recipe.write_text(told)
    fields = (f"model.path={start}", f"recipe.file={recipe}", "optimizer.learningRate=1e-3")
    run = start_job(*fields, job=JOB, small=())
    assert run.finish(timeout_s=1200) == ExitCode.DATA, run.output[-4000:]
    assert "the model is trained blind: its held-out score rose from" in run.output
    assert run.step() < 200
