"""The rehearsal of a zygote: nothing of it stays but what the interpreter has learnt."""

from __future__ import annotations

import linecache
import os
import sys

import pytest
from areal.reward.sandbox.rehearsal import rehearse


def state() -> tuple[object, ...]:
    opened = len(os.listdir("/proc/self/fd"))
    return sys.argv, sys.path[:], sys.modules["__main__"], set(sys.modules), dict(linecache.cache), opened


def test_a_rehearsal_leaves_everything_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    rehearse()  # what it imports is imported now
    before = state()
    rehearse()
    assert state() == before
    assert capfd.readouterr() == ("", "")
