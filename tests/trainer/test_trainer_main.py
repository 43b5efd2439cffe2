"""The end of a trainer's process."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAILS = """
import threading, time
from areal_trainer import main as entry

def fails(*_):
    threading.Thread(target=time.sleep, args=(300,)).start()  # as a call over a network that takes minutes
    raise RuntimeError("of a test")

entry._run = fails
entry.leave(entry.main(["--job", "x"]))
"""


@pytest.mark.component
def test_a_trainer_that_fails_ends_at_once_with_its_last_words():
    done = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 70
    assert "RuntimeError: of a test" in done.stdout + done.stderr
