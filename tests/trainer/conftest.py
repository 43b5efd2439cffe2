"""A model small enough for a test, and batches for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.trainer_parts import tiny_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of two layers, random weights, 24 token ids."""
    return tiny_model(tmp_path_factory.mktemp("model"))
