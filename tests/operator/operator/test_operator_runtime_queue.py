"""Each key once, one worker a key, the failing ones later and later."""

import asyncio
from itertools import pairwise

import pytest
from areal.net.heartbeat import Backoff
from areal_operator.kube.errors import ConflictError
from areal_operator.runtime.queue import KeySchedule, Queue, WorkResult
from hypothesis import given
from hypothesis import strategies as st
from support import virtual_time

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


class Worker:
    """Notes when it ran; what it returns or raises is given by key, one a run."""

    def __init__(self, took_s=0.0, **scripts):
        self.took_s = took_s
        self.scripts = scripts
        self.runs = []
        self.now = {}

    async def __call__(self, key):
        name = key[1]
        assert name not in self.now, f"two workers at {name}"
        self.now[name] = True
        self.runs.append((name, round(virtual_time.now() - 1000.0, 3)))
        await asyncio.sleep(self.took_s)
        del self.now[name]
        script = self.scripts.get(name)
        result = script.pop(0) if script else None
        if isinstance(result, Exception):
            raise result
        return result


async def working(queue, worker, for_s, workers=4):
    task = asyncio.create_task(queue.run(worker, workers))
    await asyncio.sleep(for_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def queue_of(done=None):
    return Queue(
        clock=virtual_time.now,
        uniform=lambda low, high: high,
        on_done=done.append if done is not None else lambda _: None,
    )


def test_a_key_that_is_added_thrice_runs_once():
    async def body():
        queue, worker = queue_of(), Worker()
        for _ in range(3):
            queue.add(A)
        await working(queue, worker, 1)
        assert worker.runs == [("a", 0.0)]

    virtual_time.run(body())


def test_a_key_added_while_it_is_worked_on_runs_again_after_and_never_beside():
    async def body():
        queue, worker = queue_of(), Worker(took_s=5)
        queue.add(A)
        task = asyncio.create_task(working(queue, worker, 30))
        await asyncio.sleep(1)
        queue.add(A)
        queue.add(A)
        await task
        assert worker.runs == [("a", 0.0), ("a", 5.0)]

    virtual_time.run(body())


def test_the_earliest_of_two_delays_counts():
    async def body():
        queue, worker = queue_of(), Worker()
        queue.add(A, 30)
        queue.add(A, 10)
        queue.add(A, 20)
        await working(queue, worker, 100)
        assert worker.runs == [("a", 10.0)]

    virtual_time.run(body())


def test_a_worker_may_ask_for_its_key_again():
    async def body():
        queue, worker = queue_of(), Worker(a=[7.0, None])
        queue.add(A)
        await working(queue, worker, 100)
        assert worker.runs == [("a", 0.0), ("a", 7.0)]

    virtual_time.run(body())


def test_a_failing_key_backs_off_from_one_second_to_five_minutes_and_starts_over_after_success():
    async def body():
        worker = Worker(a=[RuntimeError("no")] * 11 + [None, RuntimeError("again"), None])
        queue = queue_of()
        queue.add(A)
        task = asyncio.create_task(working(queue, worker, 4000))
        await asyncio.sleep(3900)
        queue.add(A)
        await task
        times = [at for _, at in worker.runs]
        gaps = [round(after - before) for before, after in pairwise(times)]
        assert gaps[:11] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
        assert gaps[12:] == [1], "after a success the back-off is short again"

    virtual_time.run(body())


def test_a_failing_key_holds_up_no_other():
    async def body():
        queue, worker = queue_of(), Worker(a=[RuntimeError("no")] * 100)
        queue.add(A)
        queue.add(B, 50)
        await working(queue, worker, 60, workers=1)
        assert ("b", 50.0) in worker.runs

    virtual_time.run(body())


def test_news_about_a_key_in_back_off_do_not_wait():
    async def body():
        queue, worker = queue_of(), Worker(a=[RuntimeError("no")] * 4)
        queue.add(A)
        task = asyncio.create_task(working(queue, worker, 10))
        await asyncio.sleep(3.5)
        queue.add(A)
        await task
        assert [at for _, at in worker.runs][:4] == [0.0, 1.0, 3.0, 3.5]

    virtual_time.run(body())


def test_no_more_workers_run_than_allowed():
    async def body():
        queue, worker = queue_of(), Worker(took_s=10)
        for key in (A, B, C):
            queue.add(key)
        await working(queue, worker, 100, workers=2)
        assert worker.runs == [("a", 0.0), ("b", 0.0), ("c", 10.0)]

    virtual_time.run(body())


def test_stop_lets_running_work_end_and_begins_none():
    async def body():
        queue, worker = queue_of(), Worker(took_s=10)
        queue.add(A)
        queue.add(B, 5)
        task = asyncio.create_task(queue.run(worker, 4))
        await asyncio.sleep(1)
        queue.stop()
        await task
        assert (worker.runs, worker.now) == ([("a", 0.0)], {})

    virtual_time.run(body())


def test_results_are_told_by_kind():
    async def body():
        done: list[WorkResult] = []
        queue, worker = queue_of(done), Worker(took_s=2, a=[ConflictError(409, "Conflict", "x"), RuntimeError(), 5.0])
        queue.add(A)
        await working(queue, worker, 20)
        assert [one.result for one in done] == ["conflict", "error", "requeue", "ok"]
        assert {round(one.took_s, 6) for one in done} == {2.0}

    virtual_time.run(body())


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from([A, B, C]), st.integers(0, 10)),
            st.tuples(st.just("take"), st.none(), st.integers(0, 5)),
            st.tuples(st.just("done"), st.sampled_from([A, B, C]), st.just(0)),
        ),
        max_size=60,
    )
)
def test_a_schedule_loses_no_key_and_never_hands_one_out_twice(steps):
    schedule, now = KeySchedule(), 0.0
    due: dict[tuple[str, str], float] = {}
    held = set()
    for step, key, number in steps:
        now += 1.0
        if step == "add":
            schedule.add(key, now + number)
            due[key] = min(due.get(key, float("inf")), now + number)
        elif step == "take":
            now += number
            ripe = {k: at for k, at in due.items() if at <= now and k not in held}
            taken = schedule.take(now)
            if taken is None:
                assert not ripe
            else:
                assert ripe[taken[0]] == taken[1] == min(ripe.values())
                held.add(taken[0])
                del due[taken[0]]
        elif key in held:
            held.discard(key)
            schedule.done(key)
        free = [at for k, at in due.items() if k not in held]
        assert schedule.wait_s(now) == (max(0.0, min(free) - now) if free else None)
        assert schedule.depth(now) == sum(at <= now for at in due.values())


@pytest.mark.parametrize("failures", [1, 5, 2000])
def test_back_off_is_drawn_from_the_upper_half_and_bounded(failures):
    drawn = []
    backoff = Backoff(1.0, 300.0, uniform=lambda low, high: drawn.append((low, high)) or high)
    for _ in range(failures):
        backoff.failed()
    low, high = drawn[-1]
    assert (low, high) == (high / 2, min(300.0, 2.0 ** min(failures - 1, 60)))
    backoff.succeeded()
    assert backoff.failed() == 1.0
