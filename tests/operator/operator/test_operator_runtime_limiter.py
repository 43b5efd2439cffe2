"""The rate limit: so many requests a second, and the important ones first."""

import asyncio

from areal_operator.runtime.limiter import Limiter, RequestPriority, TokenBucket
from hypothesis import given
from hypothesis import strategies as st
from support import virtual_time


@given(st.lists(st.floats(0, 3), max_size=200), st.floats(0.5, 50), st.integers(1, 50))
def test_no_window_holds_more_than_burst_and_rate_allow(gaps, qps, burst):
    bucket, now = TokenBucket(qps, burst, 0.0), 0.0
    taken = []
    for gap in gaps:
        now += gap
        if bucket.take(now):
            taken.append(now)
        else:
            assert bucket.wait_s(now) > 0
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + qps * (taken[last] - taken[first]) + 1e-6


def test_after_the_wait_it_names_a_token_is_there():
    bucket = TokenBucket(4.0, 1, 0.0)
    assert bucket.take(0.0)
    assert not bucket.take(0.1)
    assert bucket.take(0.1 + bucket.wait_s(0.1))


def test_a_clock_that_goes_back_gives_no_tokens():
    bucket = TokenBucket(1.0, 2, 100.0)
    assert bucket.take(100.0)
    assert bucket.take(50.0)
    assert not bucket.take(60.0)
    assert bucket.take(101.0)


def served(limiter, asks):
    """Who got a turn when; asks are (at, priority, name)."""
    order = []

    async def ask(at, priority, name):
        await asyncio.sleep(at)
        await limiter.turn(priority)
        order.append((name, round(virtual_time.now() - 1000.0, 2)))

    async def all_of_them():
        await asyncio.gather(*(ask(*one) for one in asks))
        return order

    return all_of_them()


def test_when_tokens_are_short_writes_go_before_reads_before_status_before_events():
    async def body():
        limiter = Limiter(qps=1.0, burst=1, clock=virtual_time.now)
        asks = [(0, RequestPriority.WRITE, "first")]
        asks += [
            (0.1, RequestPriority.EVENT, "event"),
            (0.1, RequestPriority.STATUS, "status"),
            (0.2, RequestPriority.READ, "read"),
        ]
        asks += [(0.3, RequestPriority.WRITE, "write"), (0.4, RequestPriority.WRITE, "write too")]
        assert await served(limiter, asks) == [
            ("first", 0.0),
            ("write", 1.0),
            ("write too", 2.0),
            ("read", 3.0),
            ("status", 4.0),
            ("event", 5.0),
        ]

    virtual_time.run(body())


def test_a_hold_is_for_everybody():
    async def body():
        limiter = Limiter(qps=10.0, burst=10, clock=virtual_time.now)
        limiter.hold(3.0)
        assert await served(limiter, [(0, RequestPriority.WRITE, "a"), (1, RequestPriority.EVENT, "b")]) == [
            ("a", 3.0),
            ("b", 3.0),
        ]

    virtual_time.run(body())


def test_a_waiter_that_gives_up_costs_nobody_a_token():
    async def body():
        limiter = Limiter(qps=1.0, burst=1, clock=virtual_time.now)
        await limiter.turn(RequestPriority.WRITE)
        impatient = asyncio.create_task(limiter.turn(RequestPriority.WRITE))
        await asyncio.sleep(0.5)
        assert limiter.waiting == 1
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        await limiter.turn(RequestPriority.EVENT)
        assert round(virtual_time.now() - 1000.0, 2) == 1.0

    virtual_time.run(body())


def test_a_waiter_that_is_cancelled_as_it_is_served_passes_its_token_on():
    async def body():
        limiter = Limiter(qps=1.0, burst=1, clock=virtual_time.now)
        await limiter.turn(RequestPriority.WRITE)

        async def cancel_at_the_very_moment():
            await asyncio.sleep(1.0)
            waiter.cancel()

        canceller = asyncio.create_task(cancel_at_the_very_moment())
        await asyncio.sleep(0)  # its timer comes before the limiter's, so it runs before the waiter does
        waiter = asyncio.create_task(limiter.turn(RequestPriority.WRITE))
        await canceller
        assert (await asyncio.gather(waiter, return_exceptions=True))[0].__class__ is asyncio.CancelledError
        await limiter.turn(RequestPriority.WRITE)
        assert virtual_time.now() == 1001.0

    virtual_time.run(body())
