"""Shards of weights: read as the reference library reads them, refused when cut off, and nothing of them is kept."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from areal.engine.weights import read_shard
from areal.errors import DataError
from safetensors.torch import load_file, save_file
from support.engine_memory import anonymous
from support.engine_models import make_model

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "b": torch.arange(5).to(torch.bfloat16),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "mask": torch.tensor([True, False, True]),
}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    return path


def test_a_shard_reads_as_the_reference_library_reads_it(shard: Path) -> None:
    found, reference = read_shard(shard), load_file(shard)
    assert found.keys() == reference.keys()
    for name, tensor in reference.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name


def test_tensors_outlive_their_file_and_writing_to_one_changes_no_file(shard: Path) -> None:
    before = shard.read_bytes()
    found = read_shard(shard)
    found["a"].zero_()
    assert shard.read_bytes() == before
    shard.unlink()
    gc.collect()
    assert found["b"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("left", [0, 5, 40, -1])
def test_a_shard_that_is_cut_off_is_refused(shard: Path, left: int) -> None:
    shard.write_bytes(shard.read_bytes()[:left])
    with pytest.raises(DataError, match="safetensors"):
        read_shard(shard)


def test_released_memory_goes_back_to_the_system(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", 0, hidden_size=512, num_hidden_layers=4, intermediate_size=2048)
    size = (model / "model.safetensors").stat().st_size
    command = [sys.executable, "-m", "support.engine_memory", str(model)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=300).stdout
    held, asleep, awake = json.loads(said.splitlines()[-1])
    assert size > 40 << 20
    assert held - asleep > 0.8 * size
    assert awake - asleep > 0.8 * size


def test_reading_again_and_again_holds_no_memory(shard: Path) -> None:
    """The library's own reader keeps some 64 bytes of each tensor that it read: 0.8 MB here."""

    save_file({f"t{index}": torch.zeros(1) for index in range(100)}, shard)
    for _ in range(10):
        read_shard(shard)
    before = anonymous()
    for _ in range(120):
        read_shard(shard)
    assert anonymous() - before < 300_000
