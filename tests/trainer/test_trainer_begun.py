"""Whole trainers that begin a step before its batch is whole, against a real Redis and a scripted controller."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from areal.errors import BugError, ExitCode
from areal.ledger import evidence
from areal.ledger.async_client import AsyncLedger
from areal_trainer import feed
from areal_trainer.actor import Actor
from support.trainer_world import JOB, World, until

pytestmark = [pytest.mark.component, pytest.mark.timeout(400)]  # a loaded machine imports torch for a minute


def rows(world: World) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (world.root / "metrics.jsonl").read_text().splitlines()]


def entries(world: World) -> list[tuple[int, int, list[int]]]:
    """(fence, step, groups) of what was trained."""
    read = evidence.read(world.root / "evidence")
    assert not read.problems
    return [(entry.fence, entry.step, [group.group for group in entry.groups]) for entry in read.entries]


def attempts(world: World) -> list[list[int]]:
    return [sorted(attempt.groups) for attempt in evidence.read(world.root / "evidence").attempts]


def plain(make_world: Any, steps: int = 2) -> list[dict[str, Any]]:
    """The rows of the same run, every batch of it whole."""
    world = make_world("plain", algorithm={"maxSteps": steps})
    world.fill(range(3 * steps), staleness=9)
    assert world.train() == ExitCode.DONE
    world.redis.flush()
    return rows(world)


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    names = ("loss", "grad_norm", "reward_mean", "tokens", "trained_tokens", "groups")
    return [[row[name] for name in names] for row in one] == [
        [pytest.approx(row[name], rel=1e-5) for name in names] for row in other
    ]


def test_groups_are_begun_before_the_last_is_there_and_the_step_is_the_same(make_world):
    expected = plain(make_world)
    world = make_world("parts", algorithm={"maxSteps": 2})
    world.fill(range(2), staleness=9)
    world.controller.due = (0, (0, 1))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.train)
        until(lambda: attempts(world) == [[0, 1]])
        assert not world.controller.advances, "nothing is taken yet"
        world.fill(range(2, 3), staleness=9)
        until(lambda: len(entries(world)) == 1)
        world.fill(range(3, 4), staleness=9)
        world.controller.due = (1, (3,))
        until(lambda: attempts(world)[-1] == [3])
        world.fill(range(4, 5), staleness=9)
        world.controller.due = (1, (3, 4))
        until(lambda: attempts(world)[-1] == [4])
        world.fill(range(5, 6), staleness=9)
        assert run.result(60) == ExitCode.DONE
    assert entries(world) == [(1, 0, [0, 1, 2]), (1, 1, [3, 4, 5])]
    assert attempts(world) == [[0, 1], [0, 1, 2], [3], [4], [3, 4, 5]]
    assert world.controller.advances == [(1, 0, 3), (1, 1, 3)]
    assert [row["groups_begun"] for row in rows(world)] == [2, 2]
    assert same(rows(world), expected)


def test_groups_of_another_step_are_not_begun(make_world):
    """What the controller said may be a step old: those groups are trained."""
    world = make_world(algorithm={"maxSteps": 2})
    world.fill(range(3), staleness=9)
    world.controller.due = (0, (0, 1, 2))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.train)
        until(lambda: len(entries(world)) == 1)
        world.fill(range(3, 6), staleness=9)
        assert run.result(60) == ExitCode.DONE
    assert attempts(world) == [[0, 1, 2], [3, 4, 5]]
    assert [row["groups_begun"] for row in rows(world)] == [0, 0]


def test_a_trainer_that_dies_with_groups_begun_has_trained_none_of_them(make_world, monkeypatch):
    expected = plain(make_world, steps=1)
    world = make_world("dies", algorithm={"maxSteps": 1})
    world.fill(range(2), staleness=9)
    world.controller.due = (0, (0, 1))
    with monkeypatch.context() as patched:
        patched.setattr(Actor, "accumulate", lambda actor, batch, advantages: (_ for _ in ()).throw(BugError("dies")))
        with pytest.raises(BugError, match="dies"):
            world.train()
    assert entries(world) == []
    assert attempts(world) == [[0, 1]], "it is known what the trainer died of"
    world.fill(range(2, 3), staleness=9)
    assert world.train() == ExitCode.DONE
    assert entries(world) == [(2, 0, [0, 1, 2])]
    assert attempts(world)[1:] == [[0, 1, 2]], "the step that crashed is taken whole"
    assert same(rows(world), expected)


def test_a_trainer_that_is_stopped_with_groups_begun_leaves_them_to_the_next(make_world):
    world = make_world(algorithm={"maxSteps": 1})
    world.fill(range(2), staleness=9)
    world.controller.due = (0, (0, 1))
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.train, stopping)
        until(lambda: attempts(world) == [[0, 1]])
        stopping.set()
        assert run.result(60) == ExitCode.DRAINED
        assert entries(world) == []
        again = pool.submit(world.train)
        until(lambda: attempts(world) == [[0, 1], [0, 1]])
        world.fill(range(2, 3), staleness=9)
        assert again.result(60) == ExitCode.DONE
    assert entries(world) == [(2, 0, [0, 1, 2])]
    assert [row["groups_begun"] for row in rows(world)] == [2]


def test_a_group_that_was_lost_and_made_again_is_trained_as_it_is_now(make_world):
    world = make_world(algorithm={"maxSteps": 1})
    world.fill(range(2), staleness=9)
    world.controller.due = (0, (0, 1))

    async def lose(group: int) -> None:
        async with AsyncLedger(world.redis.address, JOB) as ledger:
            await ledger.reopen(1, group)

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.train)
        until(lambda: attempts(world) == [[0, 1]])
        asyncio.run(lose(1))
        world.fill(range(1, 2), staleness=9, seed=7)
        world.fill(range(2, 3), staleness=9)
        assert run.result(60) == ExitCode.DONE
    assert [row["groups_begun"] for row in rows(world)] == [0]
    assert entries(world) == [(1, 0, [0, 1, 2])]
    again = make_world("again", algorithm={"maxSteps": 1})
    again.redis.flush()
    again.fill(range(1), staleness=9)
    again.fill(range(1, 2), staleness=9, seed=7)
    again.fill(range(2, 3), staleness=9)
    assert again.train() == ExitCode.DONE
    assert same(rows(world), rows(again))


def test_few_groups_are_not_begun_where_a_batch_has_many(make_world, monkeypatch):
    monkeypatch.setattr(feed, "PARTS", 1)
    world = make_world(algorithm={"maxSteps": 1})
    world.fill(range(2), staleness=9)
    world.controller.due = (0, (0, 1))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(world.train)
        until(lambda: world.controller.beats > 4)
        world.fill(range(2, 3), staleness=9)
        assert run.result(60) == ExitCode.DONE
    assert attempts(world) == [[0, 1, 2]]


def test_two_ranks_make_the_same_step_of_parts(make_world):
    """A gang: each rank does as many collectives as the other, whatever a part has for it."""
    expected = plain(make_world, steps=1)
    world = make_world("gang", algorithm={"maxSteps": 1}, spec={"trainer": {"procPerNode": 2}})
    world.fill(range(1), staleness=9)
    world.controller.due = (0, (0,))
    gang = world.gang(2)
    try:
        until(lambda: attempts(world) == [[0]], 240)
        world.fill(range(1, 3), staleness=9)
        assert gang.wait(150) == 0
    finally:
        gang.kill()
    assert [row["groups_begun"] for row in rows(world)] == [1]
    assert same(rows(world), expected)
