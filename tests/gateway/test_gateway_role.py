"""The gateway role as a process: killed in the middle of answers and between them, under the launcher's supervisor.

The worker, its Redis and its server's protocol are real; the audit of tokens judges every conversation.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from areal.admit.resolve import resolve
from areal.gateway import faults
from areal.observe.waits import WaitRegistry
from areal.plan import RoleHost, role_table
from areal.plan.access import digests_text, secret_keys
from areal.processes.core import ChildPhase
from areal.processes.supervise import ChildSupervisor, child_of
from areal.rollout.worker.sessions import Gateways
from areal.spec import load_job
from areal.workflow.tokenizer import Tokenizer
from support.agent_scene import Scene
from support.chat_tokenizer import write_chat_tokenizer
from support.gateway_scene import OWNER
from support.redis_server import RedisServer
from support.tiny_job import make_tiny_job

SESSION_KEY = "of-workers-and-gateways"

pytestmark = [pytest.mark.component, pytest.mark.timeout(180)]


@dataclass(eq=False)
class Role:
    """A gateway under supervision."""

    child: ChildSupervisor
    http: int
    grpc: int

    def gateways(self) -> Gateways:
        """As a worker knows it."""
        waits = WaitRegistry("worker-0")
        dialled, called = [f"127.0.0.1:{self.grpc}"], [f"http://127.0.0.1:{self.http}"]
        return Gateways(dialled, called, "of-the-worker", OWNER, waits, faults.secret_of(SESSION_KEY))

    async def ready(self, restarts: int = 0) -> None:
        """Wait until it serves, after so many restarts."""
        async with asyncio.timeout(60):
            while not (self.child.status.phase is ChildPhase.READY and self.child.status.restarts >= restarts):
                await self.child.changed()

    def kill(self) -> None:
        """As the kernel does when memory is short."""
        os.kill(self.child.status.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def scene_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
async def role(tmp_path: Path) -> AsyncIterator[Role]:
    job = resolve(
        load_job(make_tiny_job(tmp_path), ["rollout.gateway.replicas=1"]), run_dir=tmp_path / "run", base_dir=tmp_path
    )
    job.layout.root.mkdir(exist_ok=True)
    job.save()
    job.access.mkdir()
    secrets = {key: f"{key}-of-this-test" for key in secret_keys()}
    secrets |= {"token.worker": "of-the-worker", "session.key": SESSION_KEY}
    for name, text in {**secrets, "digests.json": digests_text(secrets)}.items():
        (job.access / name).write_text(text)
    place = RoleHost(sys.executable, (sys.executable, "-m", "areal.processes.role"), "redis-server")
    (row,) = (row for row in role_table(job, place) if row.name == "gateway-0")
    child = ChildSupervisor(child_of(row, tmp_path / "logs", tmp_path))
    life = asyncio.create_task(child.run())
    made = Role(child, row.ports["http"], row.ports["grpc"])
    await made.ready()
    yield made
    child.kill()
    await life


@dataclass(eq=False)
class Patient:
    """A client that streams its answers, and asks again with the same body when a connection breaks."""

    in_answer: Callable[[], None] = lambda: None  # called when the first token of an answer has come
    before: Callable[[], None] = lambda: None  # called before each question
    broken: int = 0

    async def run(self, base_url: str, api_key: str, texts: list[str], **cell: Any) -> list[Any]:
        messages: list[dict[str, str]] = []
        async with httpx.AsyncClient(timeout=60, headers={"authorization": f"Bearer {api_key}"}) as client:
            for text in texts:
                messages.append({"role": "user", "content": text})
                self.before()
                said = await self._ask(client, f"{base_url}/chat/completions", messages)
                messages.append({"role": "assistant", "content": said})
        return [message["content"] for message in messages if message["role"] == "assistant"]

    async def _ask(self, client: httpx.AsyncClient, url: str, messages: list[dict[str, str]]) -> str:
        body = {"model": "any", "messages": messages, "stream": True}
        while True:
            try:
                return await self._stream(client, url, body)
            except (
                httpx.ReadError,
                httpx.WriteError,
                httpx.RemoteProtocolError,
            ):  # never refused: the launcher listens
                self.broken += 1

    async def _stream(self, client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> str:
        said = ""
        async with client.stream("POST", url, json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return said
                if line.startswith("data: "):
                    choices = httpx.Response(200, text=line[6:]).json()["choices"]
                    said += "".join(choice["delta"].get("content") or "" for choice in choices)
                    if said:
                        self.in_answer()
        raise httpx.RemoteProtocolError("the stream ended before its answer")


@pytest.fixture
async def play(
    tmp_path: Path, chat_tokenizer: Tokenizer, scene_redis: RedisServer, role: Role
) -> AsyncIterator[tuple[Scene, Patient, Role]]:
    scene_redis.flush()
    client = Patient()
    made = Scene(tmp_path, chat_tokenizer, scene_redis, client, gateways=role.gateways())
    yield made, client, role
    await made.end()


Play = tuple[Scene, Patient, Role]


async def test_a_conversation_through_the_role_is_one_sequence(play: Play) -> None:
    scene, client, _ = play
    assert await scene.converse(["one", "two", "three"]) == [["heard one", "heard two", "heard three"]]
    assert (len(scene.server.starts), client.broken) == (3, 0)


async def test_a_gateway_killed_in_the_middle_of_a_stream_costs_no_token(play: Play) -> None:
    scene, client, role = play
    scene.server.by_itself = False
    killed = asyncio.Event()

    def kill() -> None:
        if not killed.is_set():
            role.kill()
            killed.set()

    client.in_answer = kill
    await scene.begin(["one", "two"])
    await scene.server.until_running(1)
    scene.server.step(3)
    async with asyncio.timeout(60):
        await killed.wait()
    scene.server.by_itself = True
    scene.server.step(64)
    assert await scene.finish() == [["heard one", "heard two"]]
    assert client.broken >= 1
    assert len(scene.server.starts) == 2, "one question, one generation"
    await role.ready(restarts=1)


async def test_a_gateway_killed_between_turns_refuses_nobody(play: Play) -> None:
    scene, client, role = play
    turns = count(1)

    def kill() -> None:
        if next(turns) == 2:
            role.kill()

    client.before = kill
    assert await scene.converse(["one", "two", "three"]) == [["heard one", "heard two", "heard three"]]
    assert len(scene.server.starts) == 3
    await role.ready(restarts=1)


async def test_a_gateway_killed_while_an_answer_is_awaited_joins_it(play: Play) -> None:
    scene, client, role = play
    scene.server.by_itself = False
    await scene.begin(["one"])
    await scene.server.until_running(1)
    role.kill()
    await role.ready(restarts=1)
    scene.server.step(64)
    assert await scene.finish() == [["heard one"]]
    assert (len(scene.server.starts), client.broken) == (1, 1)
