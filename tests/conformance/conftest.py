"""Real clients in a whole worker: what each test needs of both."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.gateway.faults import secret_of
from areal.observe.waits import WaitRegistry
from areal.rollout.worker.sessions import Gateways
from areal.workflow.tokenizer import Tokenizer
from support.agent_scene import Scene
from support.chat_tokenizer import HERMES, write_chat_tokenizer
from support.gateway_scene import OWNER, front
from support.real_clients import ROOT, RealClient
from support.redis_server import RedisServer
from support.scripted_agent import TOKEN

CLIENTS = (
    "openai-agents",
    "anthropic",
    *(
        pytest.param(name, marks=pytest.mark.nightly)
        for name in ("openai", "langchain-openai", "litellm", "inspect-ai")
    ),
)


@pytest.fixture(scope="session")
def clients_environment() -> None:
    """The environment of the clients, made once in the checkout."""
    subprocess.run(["tools/venv", "agent-clients"], cwd=ROOT, check=True, timeout=300)


@pytest.fixture(scope="module", params=CLIENTS)
def real_client(request: pytest.FixtureRequest, clients_environment: None) -> Iterator[RealClient]:
    """One of the clients."""
    client = RealClient(request.param)
    yield client
    client.stop()


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Bytes in the style of ChatML, with tools in the manner of Qwen."""
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("tokenizer"), HERMES))


@pytest.fixture(scope="session")
def scene_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests."""
    server = RedisServer.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
async def scene(
    tmp_path: Path, chat_tokenizer: Tokenizer, scene_redis: RedisServer, real_client: RealClient
) -> AsyncIterator[Callable[..., Scene]]:
    """Makes scenes of the client; ends them all."""
    made: list[Scene] = []
    scene_redis.flush()

    def make(**fields: Any) -> Scene:
        made.append(Scene(tmp_path, chat_tokenizer, scene_redis, real_client, **fields))
        return made[-1]

    yield make
    for each in made:
        await each.end()


@pytest.fixture
async def gateways() -> AsyncIterator[Gateways]:
    """A gateway in front of the worker."""
    async with front() as made:
        yield Gateways([made.address], [made.url], TOKEN, OWNER, WaitRegistry("worker-0"), secret_of(TOKEN))
