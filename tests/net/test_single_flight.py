"""Single flight: shared, left by one, left by all."""

from __future__ import annotations

import asyncio

import pytest
from areal.single_flight import SingleFlight


class Work:
    """Computations that end when told; counts beginnings and cancellations."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.may_end = asyncio.Event()

    async def make(self) -> int:
        self.begun += 1
        number = self.begun
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return number


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_callers_of_one_key_share_one_computation() -> None:
    flight, work = SingleFlight[int](), Work()
    calls = [asyncio.create_task(flight.share(key, work.make)) for key in ("a", "a", "b")]
    await _turns()
    assert "a" in flight
    work.may_end.set()
    assert await asyncio.gather(*calls) == [1, 1, 2]
    assert "a" not in flight
    assert await flight.share("a", work.make) == 3  # nothing is remembered


async def test_a_cancelled_caller_ends_its_own_wait_and_the_last_one_the_work() -> None:
    flight, work = SingleFlight[int](), Work()
    first, last = (asyncio.create_task(flight.share("a", work.make)) for _ in range(2))
    await _turns()
    first.cancel()
    await _turns()
    assert first.cancelled()
    assert work.cancelled == 0
    last.cancel()
    await _turns()
    assert work.cancelled == 1
    later = asyncio.create_task(flight.share("a", work.make))
    await _turns()
    work.may_end.set()
    assert await later == 2


async def test_an_error_reaches_every_caller() -> None:
    async def fail() -> int:
        raise ValueError("no")

    flight = SingleFlight[int]()
    ends = await asyncio.gather(*(flight.share("a", fail) for _ in range(2)), return_exceptions=True)
    assert [str(end) for end in ends] == ["no", "no"]


async def test_closing_cancels_what_is_under_way() -> None:
    flight, work = SingleFlight[int](), Work()
    call = asyncio.create_task(flight.share("a", work.make))
    await _turns()
    await flight.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert work.cancelled == 1
