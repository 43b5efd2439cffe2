"""SFT, then DPO from its model, each as a run of its own: only a trainer, exactly once, through a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import yaml
from support.job_run import VICTIMS, JobRun

pytest.importorskip("torch")

from areal_trainer.init_model import untrained

ROWS = 72


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that say how many letters there are; pairs of which the shorter answer is the chosen one."""
    tmp_path = tmp_path_factory.mktemp("supervised")
    untrained(tmp_path / "start")
    rng = Random(0)
    counts = [rng.randrange(1, 6) for _ in range(ROWS)]
    rows = [{"prompt": "x" * n + "=", "answer": str(n)} for n in counts]
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"] * 2} for row in rows]
    for name, made in (("rows", rows), ("pairs", pairs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return tmp_path


def job(folder: Path, name: str, training: str, model: Path, data: str, block: dict[str, object]) -> JobRun:
    spec = {
        "training": training,
        "model": {"path": str(model)},
        "dataset": {split: {"jsonl": str(folder / data)} for split in ("train", "evaluation")},
        training.lower(): {"batchSize": 16, "maxTokens": 16, "warmupSteps": 2, **block},
        "evaluation": {"intervalSteps": 1000},
        "checkpoint": {"intervalSteps": 3},
    }
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**head, "spec": spec}))
    return JobRun(path, folder / "runs" / name)


def held_out(run: JobRun) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.run_dir / "evaluations.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def taught(folder: Path) -> Iterator[JobRun]:
    """A finished SFT run whose trainer was killed once, behind a checkpoint."""
    sft = job(folder, "sft", "SFT", folder / "start", "rows.jsonl", {"epochs": 2, "learningRate": 3e-3}).start()
    try:
        sft.wait_for("a step behind a checkpoint", lambda: sft.step() >= 4, 120)
        others = [words for role, words in VICTIMS.items() if role != "trainer" and sft.processes(*words)]
        assert not others, f"a training on rows has only a trainer: {others}"
        sft.kill(*VICTIMS["trainer"])
        assert sft.finish(120) == 0, sft.output
        yield sft
    finally:
        sft.stop()


@pytest.mark.component
def test_a_killed_sft_run_uses_each_row_as_often_as_asked_and_learns(taught: JobRun) -> None:
    report = taught.audit()
    assert (report["trained"], report["used"], report["trainers"]) == (2 * ROWS, [2, 2], 2)
    assert taught.summary()["rowUses"] == {"fewest": 2, "most": 2}
    start, end = held_out(taught)[0], held_out(taught)[-1]
    assert end["version"] == 9
    assert end["loss"] < start["loss"] / 2
    assert not (taught.run_dir / "redis").exists()


@pytest.mark.component
def test_dpo_goes_on_from_its_model_and_prefers_the_chosen_answers(taught: JobRun, folder: Path) -> None:
    model = taught.run_dir / "model"
    dpo = job(folder, "dpo", "DPO", model, "pairs.jsonl", {"epochs": 1, "learningRate": 3e-4}).start()
    try:
        assert dpo.finish(150) == 0, dpo.output
    finally:
        dpo.stop()
    assert dpo.audit()["used"] == [1, 1]
    before, after = held_out(dpo)[0], held_out(dpo)[-1]
    assert before["loss"] == pytest.approx(0.6931, abs=1e-3)  # at the start both models are the same
    assert after["margin"] > before["margin"]
    assert after["loss"] < before["loss"]
