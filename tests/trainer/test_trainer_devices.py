"""A trainer that was promised GPUs never begins on CPUs."""

from __future__ import annotations

import pytest
import torch
from areal.errors import ConfigError
from areal.nvidia import Machine
from areal_trainer.main import require_gpus


def test_gpus_that_only_the_driver_shows_are_refused_with_both_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for index in range(2):
        (tmp_path / f"nvidia{index}").touch()
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release\n")
    with pytest.raises(ConfigError, match=r"promised 2 GPUs and sees none: driver 580\.65\.06, .* CUDA 13\.0"):
        require_gpus(2, Machine(tmp_path, version, {}))


def test_a_trainer_on_cpus_asks_for_none():
    assert require_gpus(0) is None
