"""The same behaviour without root: an ordinary user with user namespaces, and one without any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.as_user import as_user, needs_root

pytestmark = [pytest.mark.component, pytest.mark.nightly]
HERE = Path(__file__).parent


@pytest.mark.skipif(bool(needs_root()), reason=needs_root())
@pytest.mark.parametrize("module", ["sessions", "files", "processes", "scratch", "succession"])
def test_an_ordinary_users_sandbox_behaves_the_same(module: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / f"test_sandbox_{module}.py")]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        as_user(command), cwd=HERE.parents[2], env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode in (0, 5), done.stdout[-3000:] + done.stderr[-2000:]
