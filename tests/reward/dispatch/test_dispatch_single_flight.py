"""One run for equal questions; who leaves ends it only when nobody else waits."""

from __future__ import annotations

import asyncio

from areal.reward.dispatch.single_flight import SingleFlight


class Runs:
    """Counts runs; each lasts until `over`."""

    def __init__(self) -> None:
        self.begun = 0
        self.killed = 0
        self.over = asyncio.Event()

    async def body(self) -> int:
        self.begun += 1
        try:
            await self.over.wait()
        except asyncio.CancelledError:
            self.killed += 1
            raise
        return self.begun


def ask(flights: SingleFlight[int], runs: Runs, key: str = "k") -> asyncio.Task[int]:
    flight = flights.find(key) or flights.begin(key, runs.body)
    return asyncio.create_task(flights.wait(key, flight))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_equal_questions_are_one_run() -> None:
    flights, runs = SingleFlight[int](), Runs()
    waiting = [ask(flights, runs) for _ in range(5)]
    await settle()
    runs.over.set()
    assert await asyncio.gather(*waiting) == [1] * 5
    assert flights.find("k") is None


async def test_a_waiter_who_leaves_ends_nothing_for_the_others() -> None:
    flights, runs = SingleFlight[int](), Runs()
    first, second = ask(flights, runs), ask(flights, runs)
    await settle()
    first.cancel()
    await settle()
    assert (first.cancelled(), runs.killed) == (True, 0)
    runs.over.set()
    assert await second == 1


async def test_the_last_waiter_who_leaves_kills_the_run_and_the_next_question_begins_anew() -> None:
    flights, runs = SingleFlight[int](), Runs()
    waiting = [ask(flights, runs) for _ in range(3)]
    await settle()
    for each in waiting:
        each.cancel()
    await settle()
    assert runs.killed == 1
    again = ask(flights, runs)
    await settle()
    runs.over.set()
    assert await again == 2


async def test_a_question_right_after_a_kill_does_not_meet_the_dying_run() -> None:
    flights, runs = SingleFlight[int](), Runs()
    first = ask(flights, runs)
    await settle()
    first.cancel()
    await asyncio.sleep(0)
    second = ask(flights, runs)
    await settle()
    runs.over.set()
    assert await second == 2


async def test_closing_ends_every_run() -> None:
    flights, runs = SingleFlight[int](), Runs()
    waiting = [ask(flights, runs, key) for key in "abc"]
    await settle()
    await flights.close()
    await settle()
    assert runs.killed == 3
    assert all(each.done() for each in waiting)
