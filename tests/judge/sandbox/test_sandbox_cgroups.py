"""Groups of version 2, on a directory that stands for a delegated one; finding what is delegated."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from areal_judge.sandbox.host.delegation import Delegation, find, make_parent, remove_parent
from areal_judge.sandbox.kernel.cgroups import CellGroup, Groups


@pytest.fixture
def delegated(tmp_path: Path) -> Path:
    """A directory with the files that the kernel would show."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
    return tmp_path


def cell_files(path: Path) -> None:
    for name in ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs"):
        (path / name).write_text("")
    (path / "memory.peak").write_text("1234\n")
    (path / "memory.events").write_text("low 0\nhigh 0\nmax 5\noom 1\noom_kill 2\n")
    (path / "pids.events").write_text("max 0\n")


def test_limits_and_usage_of_version_2(delegated: Path) -> None:
    (parent,) = make_parent(Delegation(2, {"unified": str(delegated)}), "z1")
    assert "+memory" in Path(parent, "cgroup.subtree_control").read_text()
    groups = Groups.opened(2, [parent])
    cell = groups.make("c1")
    cell_files(Path(parent, "c1"))
    cell.limit(64 << 20, 5)
    assert Path(parent, "c1", "memory.max").read_text() == str(64 << 20)
    assert Path(parent, "c1", "memory.swap.max").read_text() == "0"
    assert Path(parent, "c1", "pids.max").read_text() == "5"
    used = cell.usage()
    assert (used.memory_peak_bytes, used.out_of_memory, used.out_of_tasks) == (1234, True, False)
    groups.close()


@pytest.fixture
def cell(delegated: Path) -> Iterator[tuple[CellGroup, Path]]:
    """A group of version 2, and its directory."""
    (parent,) = make_parent(Delegation(2, {"unified": str(delegated)}), "z1")
    groups = Groups.opened(2, [parent])
    made = groups.make("c1")
    cell_files(Path(parent, "c1"))
    yield made, Path(parent, "c1")
    made.close()
    groups.close()


def test_a_peak_that_can_be_set_back_is_each_runs_own(cell: tuple[CellGroup, Path]) -> None:
    group, path = cell
    group.limit(64 << 20, 5)
    assert group.usage().memory_peak_bytes == 1234
    for most in (777, 99):
        group.limit(64 << 20, 5)
        assert (path / "memory.peak").read_text().startswith("0")
        (path / "memory.peak").write_text(f"{most}\n")  # by the kernel, into the same file
        assert group.usage().memory_peak_bytes == most


def test_a_peak_that_can_not_be_set_back_is_known_of_the_first_run_only(
    cell: tuple[CellGroup, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, _ = cell
    opened = os.open

    def refuse(name: str, flags: int, *more: Any, **named: Any) -> int:
        if name == "memory.peak" and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "read only")
        return opened(name, flags, *more, **named)

    monkeypatch.setattr("areal_judge.sandbox.kernel.cgroups.os.open", refuse)
    group.limit(64 << 20, 5)
    assert group.usage().memory_peak_bytes == 1234
    for _ in range(2):
        group.limit(64 << 20, 5)
        assert group.usage().memory_peak_bytes is None


def test_a_kernel_without_peaks_says_none(cell: tuple[CellGroup, Path]) -> None:
    group, path = cell
    (path / "memory.peak").unlink()
    for _ in range(2):
        group.limit(64 << 20, 5)
        assert group.usage().memory_peak_bytes is None


def test_what_was_killed_or_refused_in_one_run_is_not_said_of_the_next(cell: tuple[CellGroup, Path]) -> None:
    group, path = cell
    (path / "memory.events").write_text("oom 0\noom_kill 0\n")
    killed_and_refused = []
    for killed, refused in ((0, 0), (1, 0), (1, 0), (1, 3), (1, 3), (4, 5)):
        group.limit(64 << 20, 5)
        (path / "memory.events").write_text(f"oom {killed}\noom_kill {killed}\n")
        (path / "pids.events").write_text(f"max {refused}\n")
        used = group.usage()
        killed_and_refused.append((used.out_of_memory, used.out_of_tasks))
    expected = [(False, False), (True, False), (False, False), (False, True), (False, False), (True, True)]
    assert killed_and_refused == expected


def test_cpu_time_is_the_whole_groups_on_either_version(cell: tuple[CellGroup, Path], tmp_path: Path) -> None:
    group, path = cell
    assert group.cpu_s() is None
    (path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n")
    assert group.cpu_s() == 2.5
    parents = [tmp_path / name for name in ("memory", "cpuacct", "pids")]
    for parent in parents:
        parent.mkdir()
    for count, expected in ((3, 1.25), (2, None)):
        groups = Groups.opened(1, [str(parent) for parent in (*parents[: count - 1], parents[-1])])
        older = groups.make(f"c{count}")
        if count == 3:
            (parents[1] / "c3" / "cpuacct.usage").write_text("1250000000\n")
        assert older.cpu_s() == expected
        older.close()
        groups.close()


def test_limits_are_written_when_they_differ(cell: tuple[CellGroup, Path]) -> None:
    group, path = cell
    group.limit(64 << 20, 5)
    (path / "memory.max").write_text("as the kernel has it")
    group.limit(64 << 20, 6)
    assert (path / "memory.max").read_text() == "as the kernel has it"
    assert (path / "pids.max").read_text() == "6"
    group.limit(1 << 20, 6)
    assert (path / "memory.max").read_text().startswith(str(1 << 20))


def test_a_group_is_laden_when_it_holds_much_more_than_at_first(cell: tuple[CellGroup, Path]) -> None:
    group, path = cell
    ahead = (os.cpu_count() or 1) * (256 << 10)  # what the kernel takes ahead, a processor
    said = []
    for held in (3 << 20, (6 << 20) + ahead, 1 << 20, (8 << 20) + ahead, 3 << 20):
        (path / "memory.current").write_text(f"{held}\n")
        said.append(group.laden())
    assert said == [False, False, False, True, False]


def test_a_group_that_does_not_tell_what_it_holds_is_not_laden(cell: tuple[CellGroup, Path]) -> None:
    group, _ = cell
    assert not group.laden()


def test_a_group_of_version_2_without_memory_is_nothing_to_use(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    with pytest.raises(OSError, match="hugetlb"):
        make_parent(Delegation(2, {"unified": str(tmp_path)}), "z1")


def test_processes_beside_child_groups_move_into_a_leaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("\n")
    (tmp_path / "cgroup.procs").write_text("11\n12\n")
    write = Path.write_text
    busy = [True]

    def refuse_once(self: Path, text: str) -> int:
        if self == tmp_path / "cgroup.subtree_control" and busy:
            busy.clear()
            raise OSError(16, "busy")
        return write(self, text)

    monkeypatch.setattr(Path, "write_text", refuse_once)
    make_parent(Delegation(2, {"unified": str(tmp_path)}), "z1")
    assert (tmp_path / "service" / "cgroup.procs").read_text() == "12"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_removing_says_whether_something_is_still_there(tmp_path: Path) -> None:
    (tmp_path / "empty" / "c1").mkdir(parents=True)
    (tmp_path / "busy" / "c1" / "still").mkdir(parents=True)
    assert remove_parent([str(tmp_path / "empty")])
    assert not (tmp_path / "empty").exists()
    assert not remove_parent([str(tmp_path / "busy")])
    assert remove_parent([str(tmp_path / "never")])


def test_nothing_delegated_is_found_without_a_fault(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text("30 20 0:26 / /nowhere/cgroup rw - cgroup2 cgroup2 rw\n")
    assert find(tmp_path).version == 0
