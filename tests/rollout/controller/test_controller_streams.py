"""Orders that gather for a worker: together, and never more than a message takes."""

from __future__ import annotations

import asyncio

from areal.rollout.controller.streams import WorkerStream


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
