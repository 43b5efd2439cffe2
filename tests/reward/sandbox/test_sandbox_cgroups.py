"""Groups of version 2, on a directory that stands for a delegated one; finding what is delegated."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.reward.sandbox.cgroups import Delegation, Groups, find, make_parent, remove_parent


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
