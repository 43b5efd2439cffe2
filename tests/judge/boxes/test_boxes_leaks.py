"""Holders that vanish at random moments leave nothing: counted from the operating system, not from books."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest
from areal.clients.boxes import BoxClient
from areal.errors import ArealError
from areal.v1 import boxes_pb2 as pb
from areal_judge.boxes.box import BoxRequest
from boxes.conftest import Served

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(3600)]
HOLDERS = 12
HABITS = (
    "sleep 1000 & setsid sleep 1000 & disown; echo x > /tmp/x",
    "mkdir -p a/b/c; head -c 1000000 /dev/zero > a/b/c/d; sleep 1000",
    "exit 1",
    "kill -9 $PPID",
)


async def life(client: BoxClient, habit: str) -> None:
    """A box that nobody closes."""
    name = f"{client.holder} box"
    with contextlib.suppress(ArealError, asyncio.CancelledError):
        request = pb.CreateBoxRequest(id=name, holder=client.holder, lease_ms=600_000)
        await client._stub.CreateBox(request, timeout=60)
        run = pb.RunInBoxRequest(id=name, call=1, language=pb.BOX_LANGUAGE_BASH, source=habit, timeout_ms=60_000)
        await client._stub.RunInBox(run, timeout=60)


async def test_random_disconnects_leave_nothing(served: Served, pytestconfig: pytest.Config) -> None:
    count, drawn = pytestconfig.getoption("--box-disconnects"), random.Random(0)
    turns, registry = iter(range(count)), served.stack.registry
    observer = served.client()

    async def holder() -> None:
        for _ in turns:
            client = served.client()
            client._hold()
            living = asyncio.create_task(life(client, drawn.choice(HABITS)))
            await asyncio.wait([living], timeout=drawn.choice((0.0, 0.01, 0.05, 0.2)))
            await client.close()
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)

    await asyncio.gather(*(holder() for _ in range(HOLDERS)))
    async with asyncio.timeout(120):
        while True:
            left = await observer.census()
            if left.live == 0 and left.processes <= left.process_floor and left.groups <= left.group_floor:
                break
            await asyncio.sleep(0.1)
    await observer.close()
    print(
        f"\n{count} disconnects: {left.created_total} boxes made, {left.ended_total} ended, {left.live} left; "
        f"{left.processes} processes (floor {left.process_floor}), {left.groups} groups (floor {left.group_floor}); "
        f"ends {dict(registry.ends)}"
    )
    assert left.created_total == left.ended_total
    assert registry._holders.total() == 0


async def test_boxes_that_are_closed_at_any_moment_leave_no_descriptor(served: Served) -> None:
    registry, drawn = served.stack.registry, random.Random(1)

    async def one(name: str) -> None:
        making = asyncio.create_task(registry.create(BoxRequest(name), "", 600))
        await asyncio.wait([making], timeout=drawn.choice((0.0, 0.005, 0.02)))
        making.cancel()
        await registry.close(name)
        await asyncio.gather(making, return_exceptions=True)

    async def many(first: int) -> int:
        await asyncio.gather(*(one(f"closed {number}") for number in range(first, first + 50)))
        return sum("socket" not in target for target in map(link, os.listdir("/proc/self/fd")))

    def link(name: str) -> str:
        """What a descriptor is of. Sockets are those of gRPC, too, which closes them when it likes."""
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/self/fd/{name}")
        return "gone"

    held = await many(0)
    assert await many(50) <= held
