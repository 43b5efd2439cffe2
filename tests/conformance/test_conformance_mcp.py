"""Tools of a real MCP server, called by the policy of a whole worker from an environment of its own, offline.

Every episode ends with the audit of its tokens, as those of clients do.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ArealError, DataError, InfraError
from areal.workflow.environment import HostedAgent
from areal.workflow.interpreter.client import ChildInterpreter, Target
from support.agent_scene import Scene, calculate
from support.played import ROOT, python_of

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]


class Played:
    """What each text's episode was worth, or its fault; the server's process is one of each episode."""

    def __init__(self, **config: Any) -> None:
        subprocess.run(["tools/venv", "agent-clients"], cwd=ROOT, check=True, timeout=280)
        python = python_of("agent-clients")
        server = {"command": [python, str(Path(__file__).with_name("mcp_server.py"))]}
        config = {"servers": [server], "judge": "check", **config}
        self.child = ChildInterpreter(Target("environment", "mcp", python, None, config)).start()

    async def run(self, base_url: str, api_key: str, texts: list[str], **cell: Any) -> list[Any]:
        agent, said = HostedAgent(self.child), []
        for text in texts:
            try:
                said.append(await agent.run({"prompt": text, **cell}, base_url=base_url, api_key=api_key))
            except ArealError as error:
                said.append(error)
        return said


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """One child for all tests, as for all episodes of a worker."""
    made = Played()
    yield made
    made.child.end()


@pytest.fixture
async def scene(tmp_path: Path, chat_tokenizer, scene_redis, played) -> AsyncIterator[Any]:
    """Makes the scene of a test; ends it."""
    scene_redis.flush()
    made: list[Scene] = []

    def make(client: Any = played, **fields: Any) -> Scene:
        made.append(Scene(tmp_path, chat_tokenizer, scene_redis, client, answer=calculate, **fields))
        return made[-1]

    yield make
    for each in made:
        await each.end()


async def test_calls_are_run_by_the_server_and_the_hidden_tool_judges_what_they_did(scene):
    play = scene()
    assert await play.converse(["sums of 2 and 3, 4 and 5"], wanted=[5, 9]) == [[1.0]]
    asked = play.tokenizer.decode(
        [int(token) for token in memoryview(play.server.starts[0].token_ids).cast("i")], skip_special=False
    )
    assert '"name": "add"' in asked
    assert "check" not in asked, "who judges is no tool of the policy"
    assert len(play.server.starts) == 2, "the calls of one answer are run before the next one"


async def test_each_episode_has_a_server_of_its_own(scene):
    play = scene(samples=2)
    assert sorted(await play.converse(["sum 2 and 3", "sum 4 and 4"], wanted=[5])) == [[1.0, 0.0]] * 2


async def test_a_tool_that_fails_says_so_to_the_policy(scene):
    play = scene()
    assert await play.converse(["sums of 13 and 1, 2 and 3"], wanted=[5, 14]) == [[0.5]]
    told = play.tokenizer.decode(
        [int(token) for token in memoryview(play.server.starts[1].token_ids).cast("i")], skip_special=False
    )
    assert "no sums of 13" in told


async def test_a_server_that_dies_is_infrastructure(scene):
    play = scene()
    ((fault, after),) = await play.converse(["sum 99 and 1", "sum 2 and 3"], wanted=[5])
    assert isinstance(fault, InfraError)
    assert "add is gone" in fault.message
    assert after == 1.0, "the next episode has a new one"


@pytest.mark.parametrize("until", ["initialize", "tools/list"])
async def test_a_server_that_never_answers_at_its_start_is_infrastructure(until):
    script = str(Path(__file__).with_name("mcp_silent_server.py"))
    silent = Played(servers=[{"command": [sys.executable, "-IS", script, until]}], tool_timeout_s=0.5)
    try:
        (fault,) = await asyncio.wait_for(silent.run("http://127.0.0.1:9/v1", "none", ["sum 2 and 3"]), 60)
    finally:
        silent.child.end()
    assert isinstance(fault, InfraError)
    assert f"'{until}' timed out" in fault.message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"judge": "grade"}, "no server has the tool 'grade', which is to judge; they have add, check"),
        ({"judge": None}, "the row has no `answer`"),
        ({"servers": [{"path": "x"}]}, "has a url, or a command as a list"),
    ],
)
async def test_a_config_that_cannot_be_is_refused_in_words(config, says):
    made = Played(**config)
    try:
        (fault,) = await made.run("http://127.0.0.1:9/v1", "none", ["sum 2 and 3"])
    finally:
        made.child.end()
    assert isinstance(fault, DataError)
    assert says in fault.message


async def test_two_servers_with_one_name_are_refused_and_the_answer_judges_without_a_judge(scene):
    server = {"command": [python_of("agent-clients"), str(Path(__file__).with_name("mcp_server.py"))]}
    twice, plain = Played(servers=[server, server]), Played(judge=None)
    try:
        (fault,) = await twice.run("http://127.0.0.1:9/v1", "none", ["sum 2 and 3"])
        assert "two servers have a tool 'add'" in fault.message
        assert await scene(plain).converse(["sum 2 and 3"], answer="sums: 5") == [[1.0]]
    finally:
        twice.child.end()
        plain.child.end()
