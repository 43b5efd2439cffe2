"""Rehearsals: nothing of them stays but what the interpreter has learnt."""

from __future__ import annotations

import linecache
import os
import socket
import sys

import pytest
from areal.reward.sandbox import messages
from areal.reward.sandbox.rehearsal import be_ready, rehearse


def state() -> tuple[object, ...]:
    opened = len(os.listdir("/proc/self/fd"))
    return sys.argv, sys.path[:], sys.modules["__main__"], set(sys.modules), dict(linecache.cache), opened


def test_a_rehearsal_leaves_everything_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    rehearse()  # what it imports is imported now
    before = state()
    rehearse()
    assert state() == before
    assert capfd.readouterr() == ("", "")


def test_a_process_that_becomes_ready_stays_as_it_was() -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs:
        before = state()
        be_ready(theirs)
        assert state() == before
        assert mine.recv(messages.DATAGRAM_BYTES) == messages.READY
