"""Weight files as files: an index, its shards, a second copy, what is cut off."""

# ruff: noqa: E501 (a case a line)
from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.admit.models import check_model, read_model
from areal.admit.weight_shapes import read_weights
from areal.errors import ConfigError, DataError
from areal.weights.safetensors_format import INDEX_NAME, model_files
from support.tiny_job import make_model, shapes_of, write_weights


@pytest.fixture
def sharded(tmp_path) -> Path:
    """A model in two files with their index."""
    model = tmp_path / "model"
    make_model(model)
    (model / "model.safetensors").unlink()
    shapes = sorted(shapes_of(json.loads((model / "config.json").read_text())).items())
    for number, part in enumerate((shapes[:5], shapes[5:]), start=1):
        write_weights(model, dict(part), name=f"model-0000{number}-of-00002.safetensors")
    index = {name: f"model-0000{1 if place < 5 else 2}-of-00002.safetensors" for place, (name, _) in enumerate(shapes)}
    (model / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return model


def change_index(model: Path, **changes: str | None) -> None:
    file = model / INDEX_NAME
    table = json.loads(file.read_text())
    table["weight_map"] = {name: to for name, to in {**table["weight_map"], **changes}.items() if to is not None}
    file.write_text(json.dumps(table))


def test_a_second_copy_beside_an_index_is_ignored(sharded):
    whole = read_weights(sharded)
    write_weights(sharded, {"tok_embeddings.weight": [3, 3]}, name="consolidated.safetensors")
    write_weights(sharded, {"old": [3, 3]}, name="model-00001-of-00009.safetensors")
    assert read_weights(sharded) == whole
    assert len(model_files(sharded)) == 2


def test_a_second_copy_beside_a_whole_file_is_ignored(tmp_path):
    make_model(tmp_path / "model")
    whole = read_weights(tmp_path / "model")
    write_weights(tmp_path / "model", {"tok_embeddings.weight": [3, 3]}, name="consolidated.safetensors")
    assert read_weights(tmp_path / "model") == whole


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda model: (model / SECOND).unlink(), "is named by the index and isn't there"),
        (lambda model: change_index(model, **{"model.gone.weight": FIRST}), "names model.gone.weight, which no file holds"),
        (lambda model: change_index(model, **{"lm_head.weight": SECOND}), "the index says that model-00002"),
        (lambda model: change_index(model, **{"lm_head.weight": None}), "the index says that no file does"),
        (lambda model: (model / INDEX_NAME).write_text("[]"), "is no index of weights"),
        (lambda model: (model / INDEX_NAME).write_text("{"), "is no index of weights"),
        (lambda model: write_weights(model, {"lm_head.weight": [16, 8]}, name=SECOND), "is in two files|which no file|says that"),
        (lambda model: (model / INDEX_NAME).unlink() or (model / SECOND).unlink(), "file 2 of 2 isn't there"),
        (lambda model: (model / FIRST).write_bytes((model / FIRST).read_bytes()[:-3]), "is cut off"),
        (lambda model: (model / FIRST).write_bytes(b"version https://git-lfs"), "no safetensors file"),
        (lambda model: (model / FIRST).write_bytes(b""), "no safetensors file"),
    ],
)  # fmt: skip
def test_files_that_contradict_one_another_are_refused(sharded, spoil, words):
    spoil(sharded)
    with pytest.raises(DataError, match=words) as refused:
        read_model(sharded, weights=True)
    assert refused.value.fix


def test_an_adapter_is_no_model_and_is_told_what_it_is(tmp_path):
    write_weights(
        tmp_path, {"base_model.model.model.layers.0.q.lora_A.weight": [4, 8]}, name="adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    with pytest.raises(ConfigError, match="is a LoRA adapter of org/base, no whole model") as refused:
        check_model(tmp_path, "job.yaml:3")
    assert "trainer.lora" in refused.value.fix


@pytest.mark.parametrize("spoilt", [{"architectures": 10**12}, {"architectures": "X"}, {"model_type": ["llama"]}])
def test_entries_of_another_kind_are_refused_by_their_name(spoilt, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["X"], "model_type": "llama", **spoilt}))
    with pytest.raises(DataError, match=next(iter(spoilt))):
        read_model(tmp_path)
