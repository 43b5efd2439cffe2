"""What workers hear of the fleet: every change, built once for all, and of a large fleet no more often than pays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from areal.net.kept_stream import SILENCE_S
from areal.rollout.controller import service, streams
from areal.rollout.controller.inputs import ServerReport
from areal.rollout.controller.service import RolloutService
from areal.rollout.controller.streams import Streams, WorkerStream
from areal.v1 import rollout_pb2 as rollout


def report(number: int, version: int = 1) -> ServerReport:
    return ServerReport(f"generation-{number}", "1", f"127.0.0.1:{number}", f"{version}.f1", version, True, True)


class Hall:
    """A service over a fleet of `size`, with open streams of two workers."""

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.built = 1000.0, 0
        self.servers = {n: SimpleNamespace(report=report(n), live=True, ready=True) for n in range(size)}
        core: Any = SimpleNamespace(
            book=SimpleNamespace(order=SimpleNamespace(low=0), epoch=0), done=False,
            fleet=SimpleNamespace(servers=self.servers),
        )  # fmt: skip
        self.streams = Streams()
        self.service = RolloutService("job", core, SimpleNamespace(streams=self.streams), 1)  # type: ignore[arg-type]
        self.workers = [WorkerStream(f"worker-{n}", f"{n}.1", self.service._complete_work) for n in range(2)]
        for worker in self.workers:
            self.streams.open_worker(worker)
        state = service.server_state

        def counted(*arguments: Any, **named: Any) -> Any:
            self.built += 1
            return state(*arguments, **named)

        monkeypatch.setattr(service, "server_state", counted)
        for module in (service, streams):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def told(self, worker: int = 0) -> list[int] | None:
        """Versions of the fleet in the worker's next message; None where it says nothing of it."""
        orders = rollout.WorkOrders()
        self.service._complete_work(self.workers[worker], orders)
        assert orders.fleet_changed or not orders.fleet
        return [state.version for state in orders.fleet] if orders.fleet_changed else None

    def swap(self, number: int) -> None:
        self.servers[number].report = report(number, 2)
        self.streams.fleet_changed()


async def test_a_change_is_told_to_every_worker_and_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(3, monkeypatch)
    assert [hall.told(0), hall.told(1)] == [[1, 1, 1]] * 2
    assert hall.built == 3
    assert hall.told() is None
    hall.now += 0.001
    hall.swap(1)
    assert [hall.told(0), hall.told(1)] == [[1, 2, 1]] * 2
    assert hall.built == 6


async def test_of_a_thousand_that_swap_at_once_workers_hear_by_tenths_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hall = Hall(1000, monkeypatch)
    assert hall.told() is not None
    for number in range(500):
        hall.now += 0.0001
        hall.swap(number)
        assert hall.told() is None
    assert hall.built == 1000
    stream = hall.workers[0]
    stream.outbox._wake.clear()
    assert hall.told() is None
    await asyncio.sleep(0.2)  # the time that is left until it may be told again
    assert stream.outbox._wake.is_set()
    hall.now += 0.1
    assert hall.told() == [2] * 500 + [1] * 500
    assert hall.built == 2000


async def test_who_is_told_what_was_built_before_a_change_hears_of_the_change_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hall = Hall(1000, monkeypatch)
    assert [len(hall.told(0) or ()), len(hall.told(1) or ())] == [1000, 1000]
    hall.now += 0.11
    hall.swap(1)
    assert sum(hall.told(0) or ()) == 1001
    hall.now += 0.02
    hall.swap(2)
    assert sum(hall.told(1) or ()) == 1001  # built for the other one just before
    hall.workers[1].outbox._wake.clear()
    await asyncio.sleep(0.2)
    assert hall.workers[1].outbox._wake.is_set()
    hall.now += 0.11
    assert [sum(hall.told(0) or ()), sum(hall.told(1) or ())] == [1002, 1002]
    assert hall.built == 3000


def test_a_thousand_servers_hear_less_often_and_well_before_they_leave() -> None:
    many = Streams()
    assert many.server_beat_s() == streams.BEAT_S
    many.servers = set(range(600))  # type: ignore[arg-type]
    assert streams.BEAT_S < many.server_beat_s() == pytest.approx(1.2)
    many.servers = set(range(100_000))  # type: ignore[arg-type]
    assert 2 * many.server_beat_s() < SILENCE_S


async def test_an_outbox_beats_as_often_as_it_is_told() -> None:
    outbox = streams.Outbox(rollout.ServerOrders, lambda orders: None, beat_s=lambda: 0.01)
    async with asyncio.timeout(streams.BEAT_S):
        assert [await outbox.next() for _ in range(3)] == [rollout.ServerOrders()] * 3


async def test_loads_are_told_once_a_beat_and_only_where_they_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(2, monkeypatch)
    hall.told()
    hall.now += 0.4
    hall.servers[0].report = replace(hall.servers[0].report, running=5)
    assert hall.told() is None
    hall.now += 0.2
    assert hall.told() == [1, 1]
    hall.now += 0.6
    assert hall.told() is None
