"""Slots of runs: several at once, in order, given back whatever happens. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from areal_judge.sandbox.host.streams import RunSlots
from support import virtual_time


@pytest.mark.parametrize("capacity", [1, 2, 3, 4])
def test_pairs_and_single_runs_never_wait_for_each_other_forever(capacity: int) -> None:
    async def body() -> tuple[int, int]:
        slots, now, most, done = RunSlots(capacity), 0, 0, 0

        async def work(count: int) -> None:
            nonlocal now, most, done
            async with slots.held(count):
                now += min(count, capacity)
                most = max(most, now)
                await asyncio.sleep(1)
                now -= min(count, capacity)
                done += 1

        async with asyncio.timeout(1000):
            await asyncio.gather(*(work(1 + n % 2) for n in range(40)))
        return most, done

    assert virtual_time.run(body()) == (capacity, 40)


def test_a_pair_is_not_overtaken_for_ever_and_a_cancelled_one_lets_others_go_on() -> None:
    async def body() -> list[str]:
        slots, order = RunSlots(2), []

        async def work(name: str, count: int) -> None:
            async with slots.held(count):
                order.append(name)
                await asyncio.sleep(1)

        tasks = [asyncio.create_task(work(name, count)) for name, count in (("a", 1), ("pair", 2), ("b", 1), ("c", 1))]
        gone = asyncio.create_task(work("gone", 2))
        last = asyncio.create_task(work("last", 1))
        await asyncio.sleep(0.5)
        gone.cancel()
        await asyncio.gather(*tasks, last, gone, return_exceptions=True)
        return order

    assert virtual_time.run(body()) == ["a", "pair", "b", "c", "last"]


def test_slots_that_are_granted_to_a_caller_who_is_cancelled_come_back() -> None:
    async def body() -> str:
        slots, loop = RunSlots(1), asyncio.get_running_loop()

        async def first() -> None:
            async with slots.held():
                await asyncio.sleep(1)
                loop.call_soon(second.cancel)  # runs after the grant, before its caller does

        async def other() -> str:
            async with slots.held():
                return "done"

        holding = asyncio.create_task(first())
        await asyncio.sleep(0)
        second = asyncio.create_task(other())
        await holding
        await asyncio.gather(second, return_exceptions=True)
        return await other()

    assert virtual_time.run(body()) == "done"
