"""Requests that wait for a server: the oldest floor first, named while they wait."""

from __future__ import annotations

from areal.clients.generation.routing import WaitingRequests
from areal.observe.waits import WaitRegistry


def test_the_lowest_floor_comes_first_and_a_floor_is_named_while_somebody_waits_for_it() -> None:
    waits = WaitRegistry("w")
    waiting: WaitingRequests[str] = WaitingRequests(waits)
    for name, floor in (("a", 3), ("b", 0), ("d", 3), ("c", 2)):
        waiting.add(name, floor)
    assert sorted(wait.waits_for for wait in waits.list()) == [
        "a server",
        "version ≥ 2 on a server",
        "version ≥ 3 on a server",
    ]
    order = []
    for name in waiting.lowest():
        waiting.discard(name)
        order.append(name)
    assert order == ["b", "c", "a", "d"]
    assert waits.list() == []
    waiting.discard("a")
    assert len(waiting) == 0
