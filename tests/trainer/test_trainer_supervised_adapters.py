"""Adapters on fixed rows: SFT and DPO learn, go on from a checkpoint and end with the merged model."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from areal.data.prepare import prepare
from areal.data.source import JsonlSource
from areal.errors import ExitCode
from areal.spec.job import RLJob
from areal.workflow.tokenizer import Tokenizer
from areal_trainer.desk import TrainerPorts
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.init_model import init_model
from areal_trainer.run import run
from areal_trainer.settings import RowsSettings, TrainerPaths, adapter_of
from areal_trainer.trainings.kinds import Learner, PreparedRows, kind_of
from safetensors.torch import load_file

pytestmark = pytest.mark.component

COUNTS = [1, 2, 3, 4, 5, 3, 2, 1, 5, 4, 1, 2]
LORA = {"rank": 4, "alpha": 8, "targets": ["q_proj", "v_proj", "down_proj"]}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    path = tmp_path_factory.mktemp("start") / "model"
    init_model(path)
    return path


def settings(root: Path, start: Path, training: str, epochs: int) -> RowsSettings:
    spec = {
        "model": {"path": str(start)},
        "dataset": {"train": {"jsonl": "rows.jsonl"}},
        "training": {"name": training, "batchSize": 4, "maxTokens": 16, "epochs": epochs},
        "optimizer": {"learningRate": 2e-2, "lrSchedule": "constant"},
        "evaluation": {"intervalSteps": 1000},
        "checkpoint": {"intervalSteps": 2},
        "export": {"intervalSteps": 3, "keep": 1},
        "trainer": {"lora": LORA},
    }
    job = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "adapted"}, "spec": spec}
    files = {
        name: root / name
        for name in ("checkpoints", "fences", "cards", "evidence", "weights", "recording", "tokens", "model", "exports")
    }
    paths = TrainerPaths(
        start_model=start, tokenizer=start, recipe=None, hooks=None, metrics=root / "metrics.jsonl", tensorboard=None,
        evaluations=root / "evaluations.jsonl", **files,
    )  # fmt: skip
    return RowsSettings(
        "adapted", RLJob.model_validate(job).spec, paths, root / "dataset", root / "cache", "a-token-for-tests"
    )


def prepared(root: Path, training: str) -> None:
    pairs = training == "DPO"
    rows = [
        {"prompt": "x" * n + "=", **({"chosen": str(n), "rejected": str(n) * 2} if pairs else {"answer": str(n)})}
        for n in COUNTS
    ]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split in ("train", "evaluation"):
        prepare(JsonlSource(root / "rows.jsonl"), root / "dataset" / split)


def merged_by_hand(start: Path, model: Path) -> dict[str, torch.Tensor]:
    """The start model's weights with the adapter beside `model` added up."""
    weights, adapter = load_file(start / "model.safetensors"), load_file(model / "adapter/adapter_model.safetensors")
    for name in [name for name in adapter if name.endswith("lora_A.weight")]:
        up = adapter[name.replace("lora_A", "lora_B")]
        weights[name.removeprefix("base_model.model.").replace("lora_A.", "")] += 2 * (up @ adapter[name])
    return weights


@pytest.mark.parametrize("training", ["SFT", "DPO"])
def test_adapters_learn_go_on_from_a_checkpoint_and_are_merged_at_the_end(tmp_path, start, training):
    (tmp_path / "fences").mkdir()
    prepared(tmp_path, training)
    assert run(settings(tmp_path, start, training, 1), TrainerPorts(), threading.Event()) is ExitCode.DONE
    once = load_file(tmp_path / "model" / "adapter" / "adapter_model.safetensors")
    assert run(settings(tmp_path, start, training, 2), TrainerPorts(), threading.Event()) is ExitCode.DONE
    twice = load_file(tmp_path / "model" / "adapter" / "adapter_model.safetensors")
    assert any(not torch.equal(once[name], twice[name]) for name in once)
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "grad_norm" in line] == [0, 1, 2, 3, 4, 5], "none was repeated"
    figures = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert figures[-1]["loss"] < figures[0]["loss"]
    if training == "DPO":
        assert figures[0]["loss"] == pytest.approx(0.6931, abs=1e-4), "the reference is the base"
    merged, wanted = load_file(tmp_path / "model" / "model.safetensors"), merged_by_hand(start, tmp_path / "model")
    assert merged.keys() == wanted.keys()
    assert all(torch.allclose(merged[name], wanted[name], atol=1e-6) for name in wanted)
    before = load_file(start / "model.safetensors")
    changed = [name for name, was in before.items() if not torch.equal(was, merged[name])]
    assert changed
    assert all(any(target in name for target in LORA["targets"]) for name in changed)
    assert load_file(tmp_path / "exports" / "step-6" / "model.safetensors").keys() == merged.keys()


def test_dpos_reference_is_the_base_whatever_the_adapter_has_learned(tmp_path, start):
    prepared(tmp_path, "DPO")
    spec = settings(tmp_path, start, "DPO", 1).spec
    rows = PreparedRows(tmp_path / "dataset" / "train", Tokenizer.from_dir(start, model_dir=start), spec)
    ranks = RankGroup()
    engine = PolicyEngine(start, ModelOptions(adapter=adapter_of(spec)), ranks)
    learner = Learner(engine, lambda micro: engine.forward(micro)[0], 256, None)
    sums = []
    for cache in ("before", "after"):
        kind = kind_of(spec, learner, tmp_path / cache, "digest")
        kind.prepare(rows, range(len(rows)))
        sums.append(kind._reference[rows.digest])
        batch = rows.batch(range(4))
        learner.update(batch, np.where(batch.trainable(), -1.0, 0.0), 1e-2)
    assert np.array_equal(sums[0], sums[1])
    assert not np.array_equal(learner.outputs(batch)[batch.trainable()], np.zeros(int(batch.trainable().sum())))
    ranks.close()
