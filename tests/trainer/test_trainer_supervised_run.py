"""SFT through a crash, then DPO, a reward model and a student of its model: only a trainer, each row as asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import yaml
from areal.spec.supervised import Training
from support.job_run import VICTIMS, JobRun

pytest.importorskip("torch")

import torch
from areal.weights.exports import exported_steps
from areal.workflow.tokenizer import Tokenizer
from areal_trainer.init_model import init_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

ROWS = 72


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that say how many letters there are; pairs of which the shorter answer is the chosen one."""
    tmp_path = tmp_path_factory.mktemp("supervised")
    init_model(tmp_path / "start")
    rng = Random(0)
    counts = [rng.randrange(1, 6) for _ in range(ROWS)]
    rows = [{"prompt": "x" * n + "=", "answer": str(n)} for n in counts]
    pairs = [{"prompt": row["prompt"], "chosen": row["answer"], "rejected": row["answer"] * 2} for row in rows]
    for name, made in (("rows", rows), ("pairs", pairs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return tmp_path


def job(
    folder: Path, name: str, training: Training, model: Path, data: str, block: dict[str, object], rate: float
) -> JobRun:
    spec = {
        "model": {"path": str(model)},
        "dataset": {split: {"jsonl": str(folder / data)} for split in ("train", "evaluation")},
        "training": {"name": training, "batchSize": 16, "maxTokens": 16, **block},
        "optimizer": {"learningRate": rate, "warmupSteps": 2},
        "evaluation": {"intervalSteps": 1000},
        "checkpoint": {"intervalSteps": 3},
        "export": {"intervalSteps": 2, "keep": 1},
    }
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**head, "spec": spec}))
    return JobRun(path, folder / "runs" / name)


def held_out(run: JobRun) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.run_dir / "evaluations.jsonl").read_text().splitlines()]


def finished(run: JobRun) -> JobRun:
    """Run it to its end."""
    try:
        assert run.start().finish(150) == 0, run.output
    finally:
        run.stop()
    return run


@pytest.fixture(scope="module")
def taught(folder: Path) -> Iterator[JobRun]:
    """A finished SFT run whose trainer was killed once, behind a checkpoint."""
    sft = job(folder, "sft", "SFT", folder / "start", "rows.jsonl", {"epochs": 2}, 3e-3).start()
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
def test_a_run_keeps_its_newest_export_as_a_model(taught: JobRun) -> None:
    exports = taught.run_dir / "exports"
    assert exported_steps(exports) == [8]  # the evaluations are of versions 0 and 9: none of an export is known
    assert (
        load_file(exports / "step-8" / "model.safetensors").keys()
        == load_file(taught.run_dir / "model" / "model.safetensors").keys()
    )
    assert len(Tokenizer.from_dir(exports / "step-8").encode("x=")) == 2


@pytest.mark.component
def test_dpo_goes_on_from_its_model_and_prefers_the_chosen_answers(taught: JobRun, folder: Path) -> None:
    model = taught.run_dir / "model"
    dpo = finished(job(folder, "dpo", "DPO", model, "pairs.jsonl", {"epochs": 1}, 3e-4))
    assert dpo.audit()["used"] == [1, 1]
    before, after = held_out(dpo)[0], held_out(dpo)[-1]
    assert before["loss"] == pytest.approx(0.6931, abs=1e-3)  # at the start both models are the same
    assert after["margin"] > before["margin"]
    assert after["loss"] < before["loss"]


def scored_job(taught: JobRun, folder: Path, name: str) -> JobRun:
    return job(folder, name, "RewardModel", taught.run_dir / "model", "pairs.jsonl", {"epochs": 2}, 1e-3)


def student_job(taught: JobRun, folder: Path, name: str) -> JobRun:
    if not (folder / "student").exists():
        init_model(folder / "student", seed=1)
    teacher = {"teacher": {"path": str(taught.run_dir / "model")}}
    block = {"epochs": 2, "divergence": "forwardKL", "temperature": 2.0, **teacher}
    return job(folder, name, "Distillation", folder / "student", "rows.jsonl", block, 3e-3)


JOBS = {"scores": scored_job, "student": student_job}


@pytest.fixture(scope="module")
def whole(taught: JobRun, folder: Path) -> Callable[[str], JobRun]:
    """A run that nobody killed, each of them once."""
    made: dict[str, JobRun] = {}

    def make(kind: str) -> JobRun:
        if kind not in made:
            made[kind] = finished(JOBS[kind](taught, folder, kind))
        return made[kind]

    return make


@pytest.mark.nightly  # the same code runs them as SFT, which is killed at each landing
@pytest.mark.component
@pytest.mark.parametrize("kind", JOBS)
def test_a_run_whose_trainer_was_killed_ends_with_the_same_weights(
    whole: Callable[[str], JobRun], taught: JobRun, folder: Path, kind: str
) -> None:
    killed = JOBS[kind](taught, folder, f"{kind}-killed").start()
    try:
        killed.wait_for("a step behind a checkpoint", lambda: killed.step() >= 4, 120)
        killed.kill(*VICTIMS["trainer"])
        assert killed.finish(120) == 0, killed.output
    finally:
        killed.stop()
    report = killed.audit()
    assert (report["trained"], report["used"], report["trainers"]) == (2 * ROWS, [2, 2], 2)
    weights = [next((run.run_dir / "model").glob("*.safetensors")).read_bytes() for run in (whole(kind), killed)]
    assert weights[0] == weights[1]


@pytest.mark.component
def test_a_reward_model_prefers_the_chosen_answers_and_transformers_gives_its_scores(
    whole: Callable[[str], JobRun], folder: Path
) -> None:
    scored = whole("scores")
    assert scored.audit()["used"] == [2, 2]
    before, after = held_out(scored)[0], held_out(scored)[-1]
    assert before["loss"] == pytest.approx(0.6931, abs=1e-3)  # a head of zeros prefers nothing
    assert (after["metric"], after["mean"]) == ("pair_accuracy", after["pair_accuracy"])
    assert after["mean"] > 0.9

    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(scored.run_dir / "model")
    scorer = AutoModelForSequenceClassification.from_pretrained(scored.run_dir / "model")
    texts = [pair["prompt"] + pair[side] + tokenizer.eos_token for side in ("chosen", "rejected") for pair in pairs]
    with torch.no_grad():
        scores = scorer(**tokenizer(texts, return_tensors="pt", padding=True)).logits.reshape(2, ROWS)
    assert float((scores[0] - scores[1]).mean()) == pytest.approx(after["margin"], abs=1e-5)
    assert float(scores[0].mean()) == pytest.approx(after["chosen_score"], abs=1e-5)


@pytest.mark.component
def test_a_student_ends_nearer_to_its_teacher_than_it_began(
    whole: Callable[[str], JobRun], taught: JobRun, folder: Path
) -> None:
    student = whole("student")
    assert student.audit()["used"] == [2, 2]
    before, after = held_out(student)[0], held_out(student)[-1]
    assert after["loss"] < before["loss"] / 2

    tokenizer = AutoTokenizer.from_pretrained(folder / "student")
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    models = [AutoModelForCausalLM.from_pretrained(run.run_dir / "model") for run in (student, taught)]
    total, tokens = 0.0, 0
    with torch.no_grad():
        for row in rows:
            asked = len(tokenizer(row["prompt"]).input_ids)
            ids = tokenizer(row["prompt"] + row["answer"] + tokenizer.eos_token, return_tensors="pt").input_ids
            said = [torch.log_softmax(model(ids).logits[0, asked - 1 : -1] / 2.0, -1) for model in models]
            total += float((said[1].exp() * (said[1] - said[0])).sum())
            tokens += len(said[0])
    assert after["loss"] == pytest.approx(total / tokens, rel=1e-4)
