"""Agents and environments in a child interpreter: answers, faults and whose they are, deaths, cancellation."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ConfigError, DataError, InfraError
from areal.workflow.environment import HostedAgent, HostedWorkflow
from areal.workflow.interpreter.client import ChildInterpreter, Target
from support.played import opened, play

RECIPE = """
import asyncio, os, pathlib

class Echo:
    def __init__(self, row, *, end="!"):
        self.row, self.end, self.heard = row, end, 0

    def reset(self):
        return self.row["prompt"], {}

    def step(self, action):
        self.heard += 1
        if action == "lost":
            raise ConnectionResetError("the box is gone")
        if action == "wrong":
            raise KeyError("no such key")
        if action == "die":
            os._exit(3)
        print("what a package prints is no answer")
        return action + self.end, 0.5, self.heard == 2, False, {}

async def asks(row, *, base_url, api_key, share=1.0, **extra):
    if row.get("lost"):
        raise ConnectionError("the policy can't be reached")
    return share * len(base_url)

class Adder:
    async def run(self, data, *, base_url, api_key, **extra):
        if data.get("waits"):
            pathlib.Path(data["waits"]).write_text("began")
            try:
                await asyncio.sleep(600)
            finally:
                pathlib.Path(data["waits"]).write_text("cancelled")
        assert (base_url, api_key) == ("http://here/v1", "key")
        return data["a"] + data["b"]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    file = tmp_path / "recipe.py"
    file.write_text(textwrap.dedent(RECIPE))
    return str(file)


@pytest.fixture
def environment(recipe: str) -> Callable[..., Target]:
    def target(name: str = "Echo", **config: Any) -> Target:
        return Target("environment", name, sys.executable, recipe, config)

    return target


async def test_many_environments_of_one_process_keep_apart(environment):
    async with opened(environment(end="?")) as make:
        games = [await make({"prompt": str(number)}) for number in range(20)]
        played = await asyncio.gather(*(play(game, ["a", "b", "c"]) for game in games))
    assert played == [([str(number), "a?", "b?"], 1.0, True) for number in range(20)]


async def test_a_lost_connection_is_infrastructure_and_an_error_is_the_environments(environment):
    async with opened(environment()) as make:
        with pytest.raises(InfraError, match="the box is gone"):
            await play(await make({"prompt": ""}), ["lost"])
        with pytest.raises(DataError, match="no such key") as caught:
            await play(await make({"prompt": ""}), ["wrong"])
        assert "recipe.py" in str(caught.value), "with the line of the recipe"


async def test_a_death_is_infrastructure_and_the_next_episode_has_a_new_process(environment):
    async with opened(environment()) as make:
        other = await make({"prompt": "other"})
        with pytest.raises(InfraError, match="ended with 3"):
            await play(await make({"prompt": ""}), ["die"])
        with pytest.raises(InfraError, match="has ended"):
            await other.reset()
        assert await play(await make({"prompt": "new"}), ["a"]) == (["new", "a!"], 0.5, False)


async def test_a_child_ends_with_the_worker(recipe):
    child = ChildInterpreter(Target("environment", "Echo", sys.executable, recipe)).start()
    made = await HostedWorkflow(child).make({"prompt": "x"})
    assert await made.reset() == ("x", {})
    child.end()
    with pytest.raises(InfraError):
        await made.reset()


async def test_an_agent_returns_its_reward_and_is_cancelled_with_its_episode(recipe, tmp_path):
    child = ChildInterpreter(Target("agent", "Adder", sys.executable, recipe)).start()
    access = {"base_url": "http://here/v1", "api_key": "key"}
    agent = HostedAgent(child)
    assert await agent.run({"a": 1, "b": 2.5}, **access) == 3.5
    left = tmp_path / "left"
    waiting = asyncio.create_task(agent.run({"waits": str(left)}, **access))
    await until(left, "began")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(left, "cancelled")
    child.end()


async def test_an_environment_that_calls_the_policy_itself_is_an_agent_of_the_episodes_session(environment):
    child = ChildInterpreter(environment("asks", share=0.5)).start()
    try:
        session = Session()
        workflow = HostedWorkflow(child)
        assert await workflow.arun_episode(session, {"prompt": "x"}) == ("episode", 0.5 * len(session.base_url))
        with pytest.raises(InfraError, match="can't be reached"):
            await workflow.arun_episode(session, {"lost": True})
    finally:
        child.end()


class Session:
    """An engine whose one session makes an episode of any reward."""

    base_url, api_key = "http://here/v1", "key"

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        yield self

    async def over(self) -> None:
        await asyncio.Event().wait()

    async def episode(self, reward: float) -> tuple[str, float]:
        return "episode", reward


async def until(file: Path, said: str) -> None:
    """Wait for what a child writes."""
    async with asyncio.timeout(60):
        while not (file.exists() and file.read_text() == said):  # noqa: ASYNC110, ASYNC240 - a process has no event
            await asyncio.sleep(0.01)


async def test_a_killed_process_fails_what_was_under_way(recipe, tmp_path):
    child = ChildInterpreter(Target("agent", "Adder", sys.executable, recipe)).start()
    agent = HostedAgent(child)
    waiting = asyncio.create_task(agent.run({"waits": str(tmp_path / "w")}, base_url="", api_key=""))
    await until(tmp_path / "w", "began")
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(InfraError, match="ended with -9"):
        await waiting
    child.end()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Target("environment", "nothing", sys.executable), "there is no environment 'nothing'"),
        (Target("environment", "textarena", sys.executable), "install textarena there"),
        (Target("environment", "openenv", sys.executable), "install openenv there"),
        (Target("environment", "verifiers", sys.executable), "install verifiers there"),
        (Target("agent", "nothing", sys.executable), "the recipe has no agent 'nothing'"),
        (Target("agent", "nothing", "/nowhere/python"), "name a Python that is there"),
    ],
)
def test_what_is_missing_is_told_in_words(target, said):
    with pytest.raises(ConfigError, match=said):
        ChildInterpreter(target).start()
