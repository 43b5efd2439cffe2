"""SFT and DPO on rows with images: their columns are those of samples, and whole runs read, learn and export."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from areal.values.images import greyed, image_of
from areal.workflow.examples import Example
from areal_trainer.data.batch import columns
from areal_trainer.trainings.kinds import token_batch
from safetensors.torch import load_file
from support.job_run import ROOT, JobRun
from support.tiny_vision import asked, drawing, sample, shape_of, vision_model

pytestmark = pytest.mark.component

ROWS = 64


def test_rows_have_the_image_columns_of_samples(tmp_path):
    vision_model(tmp_path)
    shape, random = shape_of(tmp_path), np.random.default_rng(3)
    shown = [(drawing(1),), (), (drawing(2, 56, 28), drawing(1))]
    prompts = [asked(shape, random, *images) for images in shown]
    examples = [
        Example(ids.astype(np.int64), np.ones(len(ids), np.bool_), images)
        for ids, images in zip(prompts, shown, strict=True)
    ]
    ours = token_batch(examples, [0, 0, 1], shape)
    theirs = columns([sample(0, at, ids, images) for at, (ids, images) in enumerate(zip(prompts, shown, strict=True))],
                     32, shape)  # fmt: skip
    assert ours.images_of(0, len(ours.token_ids)) == (*shown[0], *shown[2])
    assert len(ours.image_ends) == 2, "each file once"
    for at in range(3):  # a sample has an answer behind its prompt
        (begin, end), first = ours.offsets[at : at + 2], theirs.offsets[at]
        assert ours.images_of(begin, end) == shown[at]
        assert ours.image_positions[begin:end].tolist() == theirs.image_positions[first : first + end - begin].tolist()
    plain = token_batch(examples[1:2], [0], shape)
    assert len(plain.image_positions) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's model, shown a few answers; drawings as rows, the same in grey, and pairs."""
    place = tmp_path_factory.mktemp("squares")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples"))
        maker, squares = (importlib.import_module(name) for name in ("squares_model", "squares"))
        patch.setattr(maker, "_MOST_STEPS", 30)
        maker.make(place / "start")
        drawn = list(itertools.islice(squares.dataset("train"), ROWS))
    seen = [{**row, "images": [image_of(row["images"][0])]} for row in drawn]
    tables = {
        "seen": [{**row, "images": [one.uri for one in row["images"]]} for row in seen],
        "grey": [{**row, "images": [greyed(one).uri for one in row["images"]]} for row in seen],
        "pairs": [
            {"prompt": row["prompt"], "images": [row["images"][0].uri], "chosen": row["answer"],
             "rejected": str(int(row["answer"]) % 5 + 1)}
            for row in seen
        ],
    }  # fmt: skip
    for name, rows in tables.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


@pytest.fixture
def finished(folder: Path) -> Callable[..., JobRun]:
    """A job on one of the tables, run to its end."""

    def run(name: str, data: str, training: dict[str, Any], rate: float) -> JobRun:
        spec = {
            "model": {"path": str(folder / "start")},
            "dataset": {split: {"jsonl": str(folder / f"{data}.jsonl")} for split in ("train", "evaluation")},
            "training": {"batchSize": 16, "maxTokens": 96, **training},
            "optimizer": {"learningRate": rate},
            "evaluation": {"intervalSteps": 1000},
        }
        head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": name}}
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**head, "spec": spec}))
        job = JobRun(path, folder / "runs" / name).start()
        try:
            assert job.finish(200) == 0, job.output[-4000:]
        finally:
            job.stop()
        return job

    return run


def figures(job: JobRun) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.run_dir / "evaluations.jsonl").read_text().splitlines()]


def test_sft_reads_the_images_and_learns(finished, folder):
    seen = finished("sft-seen", "seen", {"name": "SFT", "epochs": 3}, 3e-3)
    grey = finished("sft-grey", "grey", {"name": "SFT", "epochs": 1}, 3e-3)
    first, last = figures(seen)[0]["loss"], figures(seen)[-1]["loss"]
    assert last < first
    assert abs(figures(grey)[0]["loss"] - first) > 1e-4, "the same texts and weights: what is seen matters"
    assert seen.audit()["used"] == [3, 3]
    before, after = (load_file(place / "model.safetensors") for place in (folder / "start", seen.run_dir / "model"))
    moved = {name for name, tensor in after.items() if name in before and not tensor.equal(before[name])}
    assert moved
    assert not any(".visual." in name for name in moved), "the tower is frozen"
    assert any(".visual." in name for name in after)
    assert (seen.run_dir / "model" / "preprocessor_config.json").is_file()


@pytest.mark.nightly
def test_dpo_prefers_what_the_images_say(finished):
    told = figures(finished("dpo", "pairs", {"name": "DPO", "epochs": 3, "beta": 0.1}, 1e-3))
    assert told[-1]["loss"] < told[0]["loss"]
    assert told[-1]["pair_accuracy"] >= told[0]["pair_accuracy"]
