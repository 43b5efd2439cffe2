"""Orders that gather for a worker: together, and never more than a message takes."""

from __future__ import annotations

import asyncio

import pytest
from areal.rollout.controller.streams import Outbox, Streams, WorkerStream, later_rows
from areal.v1 import rollout_pb2 as rollout


def test_rows_that_make_a_message_too_large_go_with_the_next_ones():
    async def body():
        stream = WorkerStream("w", "1", lambda stream, orders: None)
        big = b"x" * (3 << 20)
        for group in range(7):
            stream.outbox.orders.leases.add(group=group, row_json=big)
        stream.outbox.orders.evaluations.add(evaluation_id="e", row_json=big)
        told = [await stream.outbox.next() for _ in range(4)]
        assert [[lease.group for lease in orders.leases] for orders in told] == [[0, 1], [2, 3], [4, 5], [6]]
        assert [len(orders.evaluations) for orders in told] == [0, 0, 0, 1]
        assert all(orders.ByteSize() < 16 << 20 for orders in told)

    asyncio.run(body())


@pytest.mark.parametrize(("leases", "evaluations"), [(2, 0), (0, 2), (0, 0)])
def test_what_is_left_is_said_whichever_rows_it_has(leases: int, evaluations: int) -> None:
    orders, rest, large = rollout.WorkOrders(), rollout.WorkOrders(), b"x" * (5 << 20)
    for group in range(leases):
        orders.leases.add(group=group, row_json=large)
    for row in range(evaluations):
        orders.evaluations.add(row=row, row_json=large)
    assert later_rows(orders, rest) is bool(leases or evaluations)
    assert (len(rest.leases), len(rest.evaluations)) == (leases // 2, evaluations // 2)


async def test_what_is_left_goes_at_once_and_not_with_the_next_beat() -> None:
    stream = WorkerStream("w", "1", lambda stream, orders: None)
    stream.outbox._beat_s = lambda: 60.0
    for group in range(3):
        stream.outbox.orders.leases.add(group=group, row_json=b"x" * (5 << 20))
    async with asyncio.timeout(5):
        told = [await stream.outbox.next() for _ in range(3)]
    assert [[lease.group for lease in orders.leases] for orders in told if orders] == [[0], [1], [2]]


async def test_orders_of_a_few_milliseconds_go_together() -> None:
    outbox = Outbox(rollout.WorkOrders, lambda orders: None, beat_s=lambda: 60.0)
    told = asyncio.create_task(outbox.next())
    outbox.orders.revoked.append(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    outbox.orders.revoked.append(2)
    orders = await told
    assert orders is not None
    assert list(orders.revoked) == [1, 2]


async def test_a_role_that_stops_ends_every_stream_at_once() -> None:
    streams = Streams()
    worker = WorkerStream("w", "1", lambda stream, orders: None)
    streams.open_worker(worker)
    server, trainer = (Outbox(kind, lambda orders: None) for kind in (rollout.ServerOrders, rollout.TrainerOrders))
    streams.servers.add(server)
    streams.trainers.add(trainer)
    for outbox in (worker.outbox, server, trainer):
        outbox._beat_s = lambda: 60.0
    waiting = [asyncio.create_task(outbox.next()) for outbox in (worker.outbox, server, trainer)]
    await asyncio.sleep(0)
    streams.end()
    async with asyncio.timeout(5):
        assert await asyncio.gather(*waiting) == [None, None, None]
