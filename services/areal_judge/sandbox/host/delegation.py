"""Cgroup delegation: finds where the service may make cgroups, makes them and removes them.

Owns the directories `areal-sandbox-*` below the service's own groups; it removes those of services that are gone.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from areal_judge.sandbox.kernel.cgroups import CellGroup, Groups

_PREFIX = "areal-sandbox"
_CONTROLLERS = ("memory", "pids")
_ACCOUNT = "cpuacct"  # of version 1; version 2 counts CPU time in every group
_REMOVE_S = 1.0  # version 1 keeps a group busy for a moment after its last process


@dataclass(frozen=True)
class Delegation:
    """Where groups can be made: a directory a controller on version 1, one for both on version 2."""

    version: int  # 1, 2, or 0 where there is none
    directories: Mapping[str, str] = field(default_factory=dict)

    @property
    def controllers(self) -> tuple[str, ...]:
        return tuple(self.directories)


NO_DELEGATION = Delegation(0)


def find(proc: Path = Path("/proc/self")) -> Delegation:
    """The service's own groups, if groups with memory and task limits can be made below them; tried by doing."""
    lines = (proc / "cgroup").read_text().splitlines()
    own = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
    points: dict[str, str] = {}
    for line in (proc / "mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, point = left.split(" ")[3:5]
        if kind == "cgroup2":
            points.setdefault("", _below(point, root, own.get("", "/")))
        elif kind == "cgroup":
            for name in (*_CONTROLLERS, _ACCOUNT):
                path = next((path for names, path in own.items() if name in names.split(",")), None)
                if path is not None and name in options.split(","):
                    points.setdefault(name, _below(point, root, path))
    if all(name in points for name in _CONTROLLERS):
        first, last = _CONTROLLERS
        apart = points.get(_ACCOUNT) not in (None, points[first], points[last])
        for names in ((first, _ACCOUNT, last), (first, last)) if apart else ((first, last),):
            found = Delegation(1, {name: points[name] for name in names})
            if _works(found):
                return found
    if "" in points:
        found = Delegation(2, {"unified": points[""]})
        if _works(found):
            return found
    return NO_DELEGATION


def _below(point: str, root: str, path: str) -> str:
    inside = os.path.relpath(path, root) if root != "/" else path.lstrip("/")
    if inside.startswith(".."):
        inside = ""
    joined = os.path.normpath(os.path.join(point, inside))
    return joined if os.path.isdir(joined) else point


def _works(delegation: Delegation) -> bool:
    try:
        with cell_group(delegation, "probe") as cell:
            cell.limit(64 << 20, 16)
        return True
    except OSError:
        return False


@contextlib.contextmanager
def cell_group(delegation: Delegation, label: str) -> Iterator[CellGroup]:
    """A group as a cell's, to try it; gone afterwards. Raises OSError."""
    parent = make_parent(delegation, label)
    try:
        with contextlib.closing(Groups.opened(delegation.version, parent)) as groups:
            group = groups.make("cell")
            try:
                yield group
            finally:
                until = time.monotonic() + _REMOVE_S
                while not group.close() and time.monotonic() < until:
                    time.sleep(0.002)
    finally:
        remove_parent(parent)


def _owner() -> str:
    """This process, in words that tell it from any other: pid namespace, pid, start time."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return f"{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}-{fields[19]}"


def make_parent(delegation: Delegation, label: str) -> tuple[str, ...]:
    """Makes a group that cells' groups go below, one a hierarchy; their paths."""
    made: list[str] = []
    try:
        for directory in delegation.directories.values():
            path = os.path.join(directory, f"{_PREFIX}-{_owner()}-{label}")
            if delegation.version == 2:
                _delegate(directory)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            made.append(path)
            if delegation.version == 2:
                Path(path, "cgroup.subtree_control").write_text("+memory +pids")
            else:
                with contextlib.suppress(OSError):
                    Path(path, "memory.use_hierarchy").write_text("1")
    except OSError:
        remove_parent(made)
        raise
    return tuple(made)


def _delegate(directory: str) -> None:
    """Version 2 allows no processes beside child groups with controllers: they move into a leaf."""
    control = Path(directory, "cgroup.subtree_control")
    if set(_CONTROLLERS) <= set(control.read_text().split()):
        return
    offered = Path(directory, "cgroup.controllers").read_text().split()
    if not set(_CONTROLLERS) <= set(offered):
        raise FileNotFoundError(f"{directory} offers {' '.join(offered) or 'no controllers'}")
    try:
        control.write_text("+memory +pids")
    except OSError:
        leaf = Path(directory, "service")
        leaf.mkdir(exist_ok=True)
        for pid in Path(directory, "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (leaf / "cgroup.procs").write_text(pid)
        control.write_text("+memory +pids")


def remove_parent(paths: Sequence[str]) -> bool:
    """Removes groups and the empty ones below; False while processes are in them."""
    gone = True
    for path in paths:
        try:
            for name in os.listdir(path):
                if os.path.isdir(os.path.join(path, name)):
                    with contextlib.suppress(FileNotFoundError):
                        os.rmdir(os.path.join(path, name))
            os.rmdir(path)
        except FileNotFoundError:
            continue
        except OSError:
            gone = False
    return gone


def sweep(delegation: Delegation) -> int:
    """Removes groups of services of this pid namespace that are gone; how many."""
    namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    removed = 0
    for directory in delegation.directories.values():
        for name in os.listdir(directory):
            parts = name.removeprefix(f"{_PREFIX}-").split("-")
            if not name.startswith(f"{_PREFIX}-") or len(parts) < 4 or parts[0] != namespace:
                continue
            if not _alive(parts[1], parts[2]):
                remove_parent([os.path.join(directory, name)])
                removed += 1
    return removed


def _alive(pid: str, started: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19] == started
    except OSError:
        return False
