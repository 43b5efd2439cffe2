"""The node's cgroup: one below every controller's root (cgroup v1) or one (v2), made before and removed after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_INHERITED = ("cpuset.mems", "cpuset.cpus")  # a cpuset of v1 begins empty, and then holds no process


def hierarchies() -> Iterator[Path]:
    """The root of every hierarchy in which pods are counted."""
    if (ROOT / "cgroup.controllers").exists():
        yield ROOT
        return
    for path in sorted(ROOT.iterdir()):
        if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists():
            yield path


def make(name: str) -> None:
    """Makes the node's cgroup everywhere."""
    for root in hierarchies():
        path = root / name
        path.mkdir(exist_ok=True)
        for file in _INHERITED:
            if (path / file).exists() and not (path / file).read_text().strip():
                (path / file).write_text((root / file).read_text())
        if (path / "cgroup.subtree_control").exists():
            controllers = (path / "cgroup.controllers").read_text().split()
            (path / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in controllers))


def remove(name: str) -> None:
    """Removes the node's cgroup and all below it, once no process is left there."""
    for root in hierarchies():
        if (root / name).is_dir():
            for path in sorted((root / name).rglob("*"), key=lambda path: len(path.parts), reverse=True):
                if path.is_dir():
                    path.rmdir()
            (root / name).rmdir()


def left(prefix: str) -> set[str]:
    """Names of cgroups of nodes that exist now."""
    return {path.name for root in hierarchies() for path in root.glob(f"{prefix}*") if path.is_dir()}
