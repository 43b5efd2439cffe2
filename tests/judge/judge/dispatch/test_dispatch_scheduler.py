"""Slots come back whatever happens to who asked for them, also in the moment between being granted and being used."""

from __future__ import annotations

import asyncio

import pytest
from areal_judge.judge.dispatch.scheduler import MemoryBudget, QueuePlace, SlotScheduler
from areal_judge.judge.dispatch.values import Priority
from support import virtual_time


def place() -> QueuePlace:
    return QueuePlace(Priority.TRAIN, None, 100, 10)


async def nothing() -> str:
    return "done"


def test_a_caller_who_goes_as_his_slot_is_granted_gives_it_back() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        scheduler = SlotScheduler(1, MemoryBudget(1000), clock=loop.time)

        async def first() -> None:
            await asyncio.sleep(1)
            loop.call_soon(second.cancel)  # runs after the slot was granted, before its holder does

        holding = asyncio.create_task(scheduler.run(place(), first))
        await asyncio.sleep(0)
        second = asyncio.create_task(scheduler.run(place(), nothing))
        await holding
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (scheduler.running, scheduler.memory.held_bytes, len(scheduler.queue)) == (0, 0, 0)
        assert await scheduler.run(place(), nothing) == "done"

    virtual_time.run(body())


def test_work_that_fails_gives_its_slot_back() -> None:
    async def body() -> None:
        scheduler = SlotScheduler(1, MemoryBudget(1000), clock=asyncio.get_running_loop().time)

        async def fails() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await scheduler.run(place(), fails)
        assert await scheduler.run(place(), nothing) == "done"

    virtual_time.run(body())
