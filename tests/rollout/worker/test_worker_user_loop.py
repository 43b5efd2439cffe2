"""Calls between the worker's event loop and the user's."""

from __future__ import annotations

import asyncio
import threading

from areal.rollout.worker.user_loop import DELIVERED_AT_ONCE, Mailbox, UserLoop


async def test_a_burst_of_calls_keeps_its_order_and_leaves_others_their_turn() -> None:
    loop, seen = asyncio.get_running_loop(), list[int]()
    mailbox, done = Mailbox(loop), asyncio.Event()
    calls = 10 * DELIVERED_AT_ONCE
    for number in range(calls):
        mailbox.post(seen.append, number)
    mailbox.post(done.set)
    others = loop.create_future()
    loop.call_soon(lambda: others.set_result(len(seen)))
    assert await others <= DELIVERED_AT_ONCE
    await done.wait()
    assert seen == list(range(calls))


async def test_calls_from_several_threads_are_all_delivered() -> None:
    mailbox, seen = Mailbox(asyncio.get_running_loop()), list[int]()
    done = asyncio.Event()

    def post(first: int) -> None:
        for number in range(first, first + 1000):
            mailbox.post(seen.append, number)

    threads = [threading.Thread(target=post, args=(1000 * index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    mailbox.post(done.set)
    await done.wait()
    assert sorted(seen) == list(range(3000))


async def test_a_call_that_fails_leaves_the_others_be(caplog) -> None:
    mailbox, done = Mailbox(asyncio.get_running_loop()), asyncio.Event()
    mailbox.post(lambda: 1 / 0)
    mailbox.post(done.set)
    await done.wait()
    assert "a call between event loops failed" in caplog.text


def test_a_loop_ends_its_tasks_and_then_closes_what_they_shared() -> None:
    user, seen, begun = UserLoop(), list[str](), threading.Event()

    async def episode() -> None:
        try:
            begun.set()
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            seen.append("episode")

    async def close() -> None:
        seen.append("shared")

    user.mailbox.post(lambda: user.start(None, episode()))
    assert begun.wait(60)
    user.stop(close, timeout_s=60)
    assert seen == ["episode", "shared"]
    assert user.loop.is_closed()


def test_what_can_not_be_closed_is_said_and_ends_the_loop_all_the_same(caplog) -> None:
    async def broken() -> None:
        raise ValueError("no")

    async def stuck() -> None:
        await asyncio.sleep(1000)

    for closing in (broken, stuck):
        user = UserLoop()
        user.stop(closing, timeout_s=60)
        assert user.loop.is_closed()
    assert caplog.text.count("could not close") == 2
