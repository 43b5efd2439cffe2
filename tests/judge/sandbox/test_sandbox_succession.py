"""One program after the other in the same cell: what one did is nothing to the next."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig
from areal_judge.sandbox.values import (
    ALL_LAYERS,
    Ending,
    Layers,
    Limits,
    MemoryBound,
    ProgramRun,
    PythonScript,
    RunEnding,
    Tier,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox.leavers import CELL, LEAVERS, LONG, MARK, SEVERAL, Leaver, finder

pytestmark = pytest.mark.component

BY_NAME = {leaver.name: leaver for leaver in LEAVERS}
_TRIES = 8  # runs until the turn of a cell comes again
STAYING = [leaver for leaver in LEAVERS if not leaver.in_kernel]


@dataclasses.dataclass(frozen=True)
class After:
    """A run, and which cell it was in."""

    ended: RunEnding
    cell: str
    said: str


class Succession:
    """A sandbox of as few cells as there can be, for one run at a time."""

    def __init__(self, layers: Layers = ALL_LAYERS) -> None:
        self._loop = asyncio.Runner()
        config = SandboxConfig(min_tier=Tier.T0, zygotes=1, spares=1, max_runs=1, drivers=(), layers=layers)
        self.sandbox = Sandbox(config)
        self._loop.run(self.sandbox.start())
        self.again = 0  # runs in a cell that had one before
        self._cells: set[str] = set()

    def close(self) -> None:
        self._loop.run(self.sandbox.stop())
        self._loop.close()

    def run(self, run: ProgramRun) -> After:
        ended = self._loop.run(self.sandbox.run(run))
        cell, _, said = ended.stdout.decode(errors="replace").partition("\n")
        assert cell.startswith("pid:"), ended
        self.again += cell in self._cells
        self._cells.add(cell)
        return After(ended, cell, said)

    def in_one_cell(self, *runs: ProgramRun) -> list[After]:
        """Runs these until each was in the cell of the one before it: a cell that nobody needs may end in between."""
        for _ in range(_TRIES):
            done = [self.run(runs[0])]
            for run in runs[1:]:
                tries = (self.run(run) for _ in range(_TRIES))
                after = next((after for after in tries if after.cell == done[0].cell), None)
                if after is None:
                    break
                done.append(after)
            else:
                return done
        raise AssertionError("no cell had all of these")

    def wardens(self) -> set[tuple[str, str]]:
        """Process 1 of each cell, as (pid, start time)."""
        found = set()
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError, StopIteration):
                if path.name.isdigit() and _started_by(os.getpid(), path.name):
                    lines = (path / "status").read_text().splitlines()
                    numbers = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
                    if len(numbers) >= 3 and numbers[-1] == "1":
                        found.add((path.name, _stat(path.name)[19]))
        return found


def _stat(pid: str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _started_by(ancestor: int, pid: str) -> bool:
    while pid not in ("0", "1"):
        if pid == str(ancestor):
            return True
        pid = _stat(pid)[1]
    return False


def differing(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: (one[name], other[name]) for name in one if one[name] != other[name]}


def seen_by(after: After) -> dict[str, Any]:
    assert after.ended.clean, after
    found: dict[str, Any] = json.loads(after.said)[0]
    return found


@pytest.fixture(scope="module")
def cells() -> Iterator[Succession]:
    made = Succession()
    try:
        if not made.sandbox.powers.scratch:
            pytest.skip("cells here serve one run")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def untouched(cells: Succession) -> dict[Limits, dict[str, Any]]:
    """What the first program of a cell finds."""
    found = {}
    for limits in (LONG, SEVERAL):
        fresh = Succession()
        try:
            found[limits] = seen_by(fresh.run(finder(limits)))
            assert fresh.again == 0
        finally:
            fresh.close()
    return found


@pytest.mark.parametrize("leaver", STAYING, ids=lambda leaver: leaver.name)
def test_the_next_program_of_a_cell_finds_nothing(
    cells: Succession, untouched: dict[Limits, dict[str, Any]], leaver: Leaver
) -> None:
    limits = SEVERAL if leaver.limits.processes > 1 else LONG
    _, after = cells.in_one_cell(leaver.run, finder(limits))
    assert differing(seen_by(after), untouched[limits]) == {}
    assert MARK not in after.said


@pytest.mark.parametrize("leaver", LEAVERS, ids=lambda leaver: leaver.name)
def test_a_leaver_gets_as_far_as_it_can(cells: Succession, leaver: Leaver) -> None:
    ended = cells.run(leaver.run)
    endings = {
        "a bomb that is ended": (Ending.WALL_LIMIT, Ending.CPU_LIMIT),
        "a spinning program that is ended": (Ending.WALL_LIMIT,),
        "too much output": (Ending.OUTPUT_LIMIT,),
        "too much memory": (Ending.MEMORY_LIMIT,),
        "a crash": (Ending.SIGNALED,),
    }
    if leaver.name in endings:
        assert ended.ended.ending in endings[leaver.name]
    else:
        assert ended.ended.clean, ended
        assert ended.said.endswith("done\n")


def test_no_sequence_of_programs_leaves_anything(cells: Succession, untouched: dict[Limits, dict[str, Any]]) -> None:
    before, runs = cells.again, 0

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.sampled_from([one for one in STAYING if one.limits.wall_s > 1]), min_size=1, max_size=5))
    def holds(sequence: list[Leaver]) -> None:
        nonlocal runs
        for leaver in sequence:
            cells.run(leaver.run)
        for limits in (LONG, SEVERAL):
            assert differing(seen_by(cells.run(finder(limits))), untouched[limits]) == {}
        runs += len(sequence) + 2

    holds()
    assert cells.again - before > 0.5 * runs, "cells served again and again"


def test_wardens_live_on_through_whatever_their_programs_do(cells: Succession) -> None:
    for _ in range(2):
        cells.run(finder())
    before, faults = cells.wardens(), cells.sandbox.counters().infra_errors
    for leaver in STAYING:
        if leaver.limits == LONG and not leaver.changes:
            cells.run(leaver.run)
    assert before & cells.wardens()
    assert cells.sandbox.counters().infra_errors == faults


@pytest.mark.parametrize("leaver", [one for one in LEAVERS if one.in_kernel], ids=lambda leaver: leaver.name)
def test_memory_that_a_program_left_in_the_kernel_is_not_the_nexts(cells: Succession, leaver: Leaver) -> None:
    if cells.sandbox.powers.memory_bound is not MemoryBound.CGROUP:
        pytest.skip("nothing counts the memory of a cell")
    usual = cells.run(finder()).ended.memory_peak_bytes
    for _ in range(2):
        cells.run(leaver.run)
    after = [cells.run(finder()) for _ in range(4)]
    assert usual is not None
    assert all((one.ended.memory_peak_bytes or 0) < usual + (8 << 20) for one in after)
    assert len({json.dumps(seen_by(one)["self"]) for one in after}) == 1


def test_descriptors_in_flight_are_not_counted_for_the_next(cells: Succession) -> None:
    send = """
import socket
read, write = os.pipe()
held, sent = [], 0
try:
    while sent < 1000:
        held += socket.socketpair()
        socket.send_fds(held[-1], [b'x'], [read] * 10)
        sent += 10
except OSError:
    pass
print(sent)
"""
    leave = """
import socket
read, write = os.pipe()
for _ in range(3):
    left, right = socket.socketpair()
    socket.send_fds(left, [b'x'], [left.fileno(), right.fileno()] + [read] * 18)
"""
    usual = cells.run(ProgramRun(PythonScript(CELL + send), limits=LONG)).said
    for _ in range(3):
        *_, after = cells.in_one_cell(
            *(ProgramRun(PythonScript(CELL + source), limits=LONG) for source in (leave, leave, send))
        )
        assert after.said == usual


def test_memory_that_nobody_has_takes_nothing_from_the_next(cells: Succession) -> None:
    if cells.sandbox.powers.memory_bound is not MemoryBound.CGROUP:
        pytest.skip("nothing counts the memory of a cell")
    source = """
import socket
file = os.memfd_create('x')
for part in range(110): os.pwrite(file, bytes(1 << 20), part << 20)
left, right = socket.socketpair()
socket.send_fds(left, [b'x'], [file, right.fileno(), left.fileno()])
print('done')
"""
    limits = dataclasses.replace(LONG, memory_bytes=128 << 20, disk_bytes=120 << 20)
    for _ in range(4):
        assert cells.run(ProgramRun(PythonScript(CELL + source), limits=limits)).said == "done\n"
        assert cells.run(ProgramRun(PythonScript(CELL + "print(len(bytearray(90 << 20)))"), limits=limits)).ended.clean


def test_what_was_used_is_said_of_each_run_alone(cells: Succession) -> None:
    heavy = ProgramRun(PythonScript(f"{CELL}x = bytearray(150 << 20)\nwhile os.times()[0] < 0.4: pass"), limits=LONG)
    light = ProgramRun(PythonScript(CELL + "pass"), limits=LONG)
    _, burdened, last = cells.in_one_cell(light, heavy, light)
    assert burdened.ended.max_rss_bytes > 150 << 20
    after = last.ended
    assert after.cpu_s < 0.2
    assert after.max_rss_bytes < 64 << 20
    if cells.sandbox.powers.memory_bound is MemoryBound.CGROUP:
        assert after.memory_peak_bytes is not None
        assert after.memory_peak_bytes < 16 << 20


def test_a_peak_is_what_the_programs_of_a_run_had_together(cells: Succession) -> None:
    if cells.sandbox.powers.memory_bound is not MemoryBound.CGROUP:
        pytest.skip("nothing counts the memory of a cell")
    source = CELL + "x = bytearray({} << 20)"
    usual = min(
        cells.run(ProgramRun(PythonScript(source.format(0)), limits=LONG)).ended.memory_peak_bytes or 0
        for _ in range(4)
    )
    for taken in (40, 8, 90, 20, 60, 4):
        peak = cells.run(ProgramRun(PythonScript(source.format(taken)), limits=LONG)).ended.memory_peak_bytes
        assert peak is not None
        assert abs(peak - usual - (taken << 20)) < 3 << 20


@pytest.mark.parametrize(
    ("source", "limits", "ending"),
    [
        ("x = bytearray(10 ** 10)\nx = bytearray(10 ** 9)", {"memory_bytes": 64 << 20}, Ending.MEMORY_LIMIT),
        ("while True: open('x', 'ab').write(bytes(1 << 20))", {"disk_bytes": 4 << 20}, Ending.DISK_LIMIT),
        ("while True: print('x' * 1000)", {"output_bytes": 1 << 16}, Ending.OUTPUT_LIMIT),
        ("while True: pass", {"wall_s": 0.3}, Ending.WALL_LIMIT),
        ("while True: pass", {"cpu_s": 1.0}, Ending.CPU_LIMIT),
        ("import time\nfor _ in range(40):\n    if os.fork() == 0: time.sleep(9)", {}, Ending.PROCESS_LIMIT),
        ("import ctypes; ctypes.string_at(1)", {}, Ending.SIGNALED),
    ],
    ids=["memory", "disk", "output", "wall", "cpu", "processes", "crash"],
)
def test_how_one_program_ended_is_nothing_to_the_next(
    cells: Succession, source: str, limits: dict[str, Any], ending: Ending
) -> None:
    base = SEVERAL if "fork" in source else LONG
    bad = ProgramRun(PythonScript(CELL + source), limits=dataclasses.replace(base, **limits))
    failing = ProgramRun(PythonScript(CELL + "import sys; sys.exit(3)"), limits=bad.limits)
    left, failed, found = (after.ended for after in cells.in_one_cell(bad, failing, finder(bad.limits)))
    assert left.ending is ending
    assert (failed.ending, failed.exit_code, failed.stderr) == (Ending.EXITED, 3, b"")
    assert found.clean


def test_random_numbers_are_new_in_each_program_of_a_cell(cells: Succession) -> None:
    source = CELL + "import random, uuid, tempfile\nprint(random.random(), uuid.uuid4(), tempfile.mktemp())"
    said = [cells.run(ProgramRun(PythonScript(source), limits=LONG)).said.split() for _ in range(6)]
    assert [len(set(column)) for column in zip(*said, strict=True)] == [6, 6, 6]


def test_nothing_of_kept_files_is_in_the_memory_of_the_next_program(cells: Succession) -> None:
    words = "what-a-run-had-in-a-file-that-was-kept"
    leaver = ProgramRun(PythonScript(f"{CELL}open('kept', 'w').write({words!r} * 9000)"), limits=LONG, keep=("kept",))
    pattern = "".join(f"[{letter}]" for letter in words)  # so that it doesn't find itself
    source = f"""
import re
word = re.compile(rb'{pattern}')
found = 0
with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
    for line in list(maps):
        span, mode, *_ = line.split()
        begin, end = (int(part, 16) for part in span.split('-'))
        if mode.startswith('rw'):
            try:
                memory.seek(begin)
                found += len(word.findall(memory.read(end - begin)))
            except OSError:
                pass
print(found)
"""
    same_shape = ProgramRun(PythonScript(CELL + source), limits=LONG, keep=("kept",))
    left, after = cells.in_one_cell(leaver, same_shape)
    assert left.ended.files == {"kept": words.encode() * 9000}
    assert after.said == "0\n"


@pytest.mark.parametrize("name", ["objects of the ipc namespace", "a host name"])
def test_without_the_filter_nothing_is_left_either(name: str) -> None:
    """The ipc namespace is sealed, or each program has its own; no program has a capability."""
    bare = Succession(dataclasses.replace(ALL_LAYERS, seccomp=False))
    try:
        expected = seen_by(bare.run(finder()))
        left, after = bare.in_one_cell(BY_NAME[name].run, finder())
        if not bare.sandbox.powers.user_namespace:
            assert {line.split()[0] for line in left.said.splitlines()} <= {"-1", "[Errno", "done"}
        assert differing(seen_by(after), expected) == {}
    finally:
        bare.close()


@pytest.mark.parametrize("off", [{"landlock": False}, {"landlock": False, "seccomp": False}], ids=", ".join)
def test_no_signal_ends_the_first_process_of_a_cell(off: dict[str, bool]) -> None:
    """Where users don't differ and signals can't be scoped, a program may send any; it may end only itself."""
    source = """
import signal, sys, time
for number in {}:
    try: os.kill(1, number)
    except OSError: pass
time.sleep(0.05)
print('alive')
"""
    bare = Succession(dataclasses.replace(ALL_LAYERS, **off))
    try:
        for _ in range(2):
            bare.run(finder())
        before = bare.wardens()
        most = [number for number in range(1, 65) if number != signal.SIGTERM]
        for numbers in (most, [signal.SIGTERM.value], [*most, signal.SIGTERM.value] * 20):
            left, after = bare.in_one_cell(
                ProgramRun(PythonScript(CELL + source.format(numbers)), limits=LONG), finder()
            )
            assert left.said == "alive\n" or (left.ended.signal == signal.SIGKILL and numbers is not most)
            assert after.ended.clean
        assert before & bare.wardens()
    finally:
        bare.close()
