"""Scorers forked from a process that has imported everything: ready, killed, replaced, gone with the service."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from areal.errors import DataError, InfraError
from areal.reward.scorer_pool.fork_server import ForkServer
from areal.reward.scorer_pool.pool import KillablePool, PoolSize, ScorerAnswer
from areal.reward.scorer_pool.process import ScorerCommand

pytest.importorskip("math_verify")
pytestmark = pytest.mark.component

COMMAND = ScorerCommand("areal.reward.scorers.math", memory_bytes=1 << 30, preloaded=True, confined=True)
PAIR = ["1/2", "0.5", True]


@pytest.fixture
async def starter() -> AsyncIterator[ForkServer]:
    made = ForkServer(COMMAND)
    yield made
    await made.stop()


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def rights_of(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/status").read_text().splitlines())


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_forks_judge_and_hold_every_layer(starter: ForkServer) -> None:
    one, two = await asyncio.gather(starter.start_child(60), starter.start_child(60))
    for child in (one, two):
        child.send([PAIR])
        ((value, _),) = await child.receive(10)
        assert value == ["EQUAL", ""]
        assert child.lacking == ()
        assert {"NoNewPrivs:\t1", "Seccomp:\t2"} <= rights_of(child.pid)
    assert one.pid != two.pid


async def test_a_killed_fork_says_how_it_ended_and_leaves_nothing(starter: ForkServer) -> None:
    child = await starter.start_child(60)
    assert await child.kill() == "signal SIGKILL"
    assert gone(child.pid)
    assert not child.alive


async def test_forks_die_with_their_fork_server_and_the_next_start_makes_another(starter: ForkServer) -> None:
    child = await starter.start_child(60)
    parent = parent_of(child.pid)
    os.kill(parent, signal.SIGKILL)
    assert await child.gone() == "signal SIGKILL"
    fresh = await starter.start_child(60)
    fresh.send([PAIR])
    assert (await fresh.receive(10))[0][0] == ["EQUAL", ""]


async def test_stop_ends_everything(starter: ForkServer) -> None:
    child = await starter.start_child(60)
    parent = parent_of(child.pid)
    await starter.stop()
    await child.gone()
    assert gone(parent)


async def test_a_confined_fork_knows_nothing_of_the_services_environment(
    starter: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AREAL_TEST_SECRET", "s3cret")
    child = await starter.start_child(60)
    assert b"s3cret" not in environment_of(child.pid)


async def test_what_can_never_work_is_the_datas_fault() -> None:
    recipe = ForkServer(ScorerCommand("areal.reward.scorers.recipe", ("/nowhere.py",), preloaded=True))
    with pytest.raises(DataError):
        await recipe.start_child(60)
    await recipe.stop()


async def test_a_start_that_takes_too_long_is_nobodys_verdict(starter: ForkServer) -> None:
    with pytest.raises(InfraError):
        await starter.start_child(0.001)
    assert (await starter.start_child(60)).alive


async def test_scorers_are_replaced_when_their_memory_has_grown() -> None:
    pool = KillablePool(COMMAND, PoolSize(recycle_growth_bytes=1))
    await pool.start()
    try:
        for _ in range(3):
            (outcome,) = await pool.run([["x^2+2x+1", "(x+1)^2", True]], [20.0], 60.0)
            assert isinstance(outcome, ScorerAnswer)
        assert pool.starts >= 3
        assert pool.kills == 0
    finally:
        await pool.stop()
