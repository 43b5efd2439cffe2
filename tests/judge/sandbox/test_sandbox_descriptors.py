"""A cell finds its three descriptors under their numbers, whatever numbers its zygote had them under."""

from __future__ import annotations

import itertools
import os
import resource
import socket
from pathlib import Path

import pytest
from areal_judge.sandbox.cell.cell import _arrange_descriptors
from areal_judge.sandbox.cell.confinement import Confinement
from areal_judge.sandbox.cell.means import Means
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.cell.place import CONTROL, ENTRY, RULES, CellPlace
from areal_judge.sandbox.host.runner import _allow_descriptors
from areal_judge.sandbox.values import ALL_LAYERS

# Of a zygote with many cells; its own low ones in any order.
NUMBERS = [(250, 200, 7), (200, 201, 202), (201, 200, 300), (202, 201, 200), *itertools.permutations((3, 4, 5))]


def said_by(numbers: tuple[int, int, int]) -> None:
    """In a child that will end: says on each line which it is."""
    names = [socket.socket(fileno=number) for number in numbers[:2]]
    confinement = Confinement(Means(), ALL_LAYERS, False)
    place = CellPlace(CellShape(False, False, 1 << 20, 64), 0, Means(), ALL_LAYERS, confinement, numbers[2], ())
    _arrange_descriptors(place, *names)
    os.write(CONTROL, b"control")
    os.write(ENTRY, b"entry " + os.readlink(f"/proc/self/fd/{RULES}").encode())
    os.write(ENTRY, b" ".join(sorted(name.encode() for name in os.listdir("/proc/self/fd"))))


@pytest.mark.parametrize("numbers", NUMBERS)
def test_lines_and_ruleset_are_told_apart_and_nothing_else_stays(numbers: tuple[int, int, int], tmp_path: Path) -> None:
    ruleset = tmp_path / "ruleset"
    ruleset.touch()
    control, entry = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    for mine, _ in (control, entry):
        mine.settimeout(20)
    child = os.fork()
    if child == 0:
        try:
            rules = os.open(ruleset, os.O_RDONLY)
            high = [
                os.dup2(given, 900 + at) for at, given in enumerate((control[1].fileno(), entry[1].fileno(), rules))
            ]
            for parked, number in zip(high, numbers, strict=True):
                os.dup2(parked, number)
            said_by(numbers)
        finally:
            os._exit(0)
    for _, theirs in (control, entry):
        theirs.close()
    assert control[0].recv(100) == b"control"
    assert entry[0].recv(200) == f"entry {ruleset}".encode()
    listed = 6  # the directory that is being read
    assert [int(number) for number in entry[0].recv(200).split()] == [0, 1, 2, CONTROL, ENTRY, RULES, listed]
    os.waitpid(child, 0)
    for mine, _ in (control, entry):
        mine.close()


def test_a_service_has_as_many_open_files_as_it_may() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        _allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
