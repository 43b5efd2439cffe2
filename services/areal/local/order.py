"""In which order roles start and stop. Pure.

A dependency is a row's name or a role's (then: all rows of it). Roles start when all they depend on are ready, and stop
in the opposite order, so that a trainer can still commit while the ledger is up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from areal.errors import BugError


def resolve(roles: Mapping[str, str], wants: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """For each row the rows it depends on. `roles`: row → role; `wants`: row → names of rows or roles."""
    resolved: dict[str, frozenset[str]] = {}
    for row, names in wants.items():
        found: set[str] = set()
        for name in names:
            matching = [other for other, role in roles.items() if name in (other, role) and other != row]
            if not matching:
                raise BugError(f"{row} depends on {name!r}, which is no role of this job")
            found.update(matching)
        resolved[row] = frozenset(found)
    return resolved


def stop_levels(needs: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Rows in groups: a group may stop when the groups before it have stopped."""
    sorter = TopologicalSorter({row: set(others) for row, others in needs.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise BugError(f"roles depend on each other in a circle: {' → '.join(error.args[1])}") from error
    levels: list[list[str]] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        levels.append(ready)
        sorter.done(*ready)
    # A row without dependents stops first, even one that started early.
    depth = dict.fromkeys(needs, 0)
    for level in reversed(levels):
        for row in level:
            for other in needs[row]:
                depth[other] = max(depth[other], depth[row] + 1)
    return [[row for row in needs if depth[row] == wanted] for wanted in sorted(set(depth.values()))]
