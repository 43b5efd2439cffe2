"""Stopped processes (SIGSTOP, a debugger) among the families of some roles, from one pass over /proc."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_STOPPED = ("T", "t")


def stopped(roots: Collection[int], proc: Path = Path("/proc")) -> dict[int, int]:
    """Of each root whose family holds a stopped process: its pid, the root's own first."""
    parents: dict[int, int] = {}
    found: list[int] = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        parents[int(entry.name)] = int(parent)
        if state in _STOPPED:
            found.append(int(entry.name))
    held: dict[int, int] = {}
    for pid in found:
        root = pid
        while root and root not in roots:
            root = parents.get(root, 0)
        if root and held.get(root) != root:
            held[root] = pid
    return held
