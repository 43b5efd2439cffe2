"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytest_plugins = ["kube.harness.fixtures"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def digits() -> Path:
    """The quickstart's data and start model, made once in the checkout (both are cached by their arguments)."""
    data = ROOT / "data" / "digits"
    subprocess.run([sys.executable, "examples/digits_data.py", "data/digits"], cwd=ROOT, check=True, timeout=120)
    command = [sys.executable, "-m", "areal_trainer.init_model", "--out", "models/digits-1m"]
    command += ["--sft", str(data / "sft.jsonl"), "--validation", str(data / "validation.jsonl")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return ROOT / "models" / "digits-1m"
