"""Zygotes that have numpy imported: they have no threads, or an ordinary user's could enter no user namespace."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Limits, ProgramRun, PythonScript
from support.as_user import as_user, needs_root

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]


async def test_a_program_finds_numpy_imported(namespaced: Sandbox) -> None:
    pytest.importorskip("numpy")
    source = "import numpy, sys; print(numpy.linalg.det(numpy.eye(3)))"
    ended = await namespaced.run(ProgramRun(PythonScript(source), limits=Limits(wall_s=20), numpy=True))
    assert (ended.clean, ended.stdout) == (True, b"1.0\n")


@pytest.mark.skipif(bool(needs_root()), reason=needs_root())
async def test_so_does_an_ordinary_user_s() -> None:
    here = Path(__file__)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here), "-k", "finds_numpy"]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = await asyncio.to_thread(
        subprocess.run, as_user(command), cwd=here.parents[3], env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout
