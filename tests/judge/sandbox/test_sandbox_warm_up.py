"""The warm-up of an interpreter leaves nothing but what the interpreter has learnt."""

from __future__ import annotations

import linecache
import os
import socket
import sys

import pytest
from areal_judge.sandbox.cell import messages
from areal_judge.sandbox.cell.warm_up import announce_ready, warm_up


def state() -> tuple[object, ...]:
    opened = len(os.listdir("/proc/self/fd"))
    return sys.argv, sys.path[:], sys.modules["__main__"], set(sys.modules), dict(linecache.cache), opened


def test_a_warm_up_leaves_everything_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    warm_up()  # what it imports is imported now
    before = state()
    warm_up()
    assert state() == before
    assert capfd.readouterr() == ("", "")


def test_a_process_that_becomes_ready_stays_as_it_was() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        before = state()
        announce_ready(theirs)
        assert state() == before
        assert mine.recv(messages.DATAGRAM_BYTES) == messages.READY
