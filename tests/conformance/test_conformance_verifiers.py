"""Tasksets of the real package verifiers, played against a whole worker in an environment of their own, offline.

Every episode ends with the audit of its tokens, as those of clients do.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from areal.errors import ArealError, DataError, InfraError
from areal.gateway.session import SessionLimits
from areal.workflow.environment import HostedAgent
from areal.workflow.interpreter.client import ChildInterpreter, Target
from support.agent_scene import Scene
from support.played import ROOT, python_of

pytestmark = [pytest.mark.component, pytest.mark.nightly, pytest.mark.timeout(300)]
CONFIG = {"path": str(ROOT / "examples"), "taskset": {"id": "verifiers_digits"}}


class Played:
    """The rewards of tasks whose answer is what the policy says to the first of them, or their faults."""

    def __init__(self, config: dict[str, Any]) -> None:
        subprocess.run(["tools/venv", "environment-verifiers"], cwd=ROOT, check=True, timeout=280)
        python = python_of("environment-verifiers")
        self.child = ChildInterpreter(Target("environment", "verifiers", python, None, config)).start()

    async def run(self, base_url: str, api_key: str, texts: list[str], **cell: Any) -> list[Any]:
        agent, said = HostedAgent(self.child), []
        for text in texts:
            row = {"prompt": text, "answer": "heard one", **cell}
            try:
                said.append(await agent.run(row, base_url=base_url, api_key=api_key))
            except ArealError as error:
                said.append(error)
        return said


@pytest.fixture(scope="module")
def played() -> AsyncIterator[Played]:
    """One child for all tests, as for all episodes of a worker."""
    made = Played(CONFIG)
    yield made
    made.child.end()


@pytest.fixture
async def scene(tmp_path: Path, chat_tokenizer, scene_redis, played) -> AsyncIterator[Any]:
    """Makes the scene of a test; ends it."""
    scene_redis.flush()
    made: list[Scene] = []

    def make(**fields: Any) -> Scene:
        made.append(Scene(tmp_path, chat_tokenizer, scene_redis, played, **fields))
        return made[-1]

    yield make
    for each in made:
        await each.end()


async def test_the_reward_is_the_tasksets_and_the_tokens_are_those_that_were_sampled(scene):
    play = scene(samples=3)
    assert await play.converse(["one", "two"]) == [[1.0, 0.0]] * 3
    assert len(play.server.starts) == 6
    assert play.bench is not None
    for sample in (await play.bench.stored()).values():
        assert len(sample.sequences) == 2, "two tasks, two conversations"


async def test_a_system_prompt_of_the_task_is_a_message(scene):
    play = scene()
    assert await play.converse(["one"], system_prompt="Be brief.") == [[1.0]]
    (start,) = play.server.starts
    text = play.tokenizer.decode([int(token) for token in memoryview(start.token_ids).cast("i")], skip_special=False)
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")


async def test_a_row_that_is_no_task_is_the_datasets_fault(played):
    agent = HostedAgent(played.child)
    with pytest.raises(DataError, match="answer"):
        await agent.run({"prompt": "one"}, base_url="http://127.0.0.1:9/v1", api_key="none")


async def test_a_prompt_without_room_is_the_datasets_fault_and_asked_once(scene):
    play = scene(limits=SessionLimits(max_new_tokens=64, max_sample_tokens=1024, max_calls=8))
    ((refused, after),) = await play.converse(["x" * 2000, "one"])
    assert isinstance(refused, DataError)
    assert "leaves no room" in refused.message
    assert after == 1.0


async def test_a_policy_that_cannot_be_reached_is_infrastructure(played):
    agent = HostedAgent(played.child)
    with pytest.raises(InfraError):
        await agent.run({"prompt": "one", "answer": ""}, base_url="http://127.0.0.1:9/v1", api_key="none")
