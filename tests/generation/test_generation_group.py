"""Weights straight from the trainer to servers by a process group: real processes, and one of them killed at a time.

Whatever is killed, every server comes to hold the version, from the volume, and the next one goes by a new group.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from areal.generation.agent import GenerationAgent
from areal.weights.publish import WeightsRef
from generation_parts import SERVER, Answer, World, running_agent, running_world, start_of
from support.engine_models import hf_logprobs
from support.engine_server import free_port
from support.group_trainer import GroupTrainer

pytestmark = [pytest.mark.component, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SECOND = "generation-1"
PROMPT = [5, 17, 33, 9, 40]


@dataclass
class Group:
    """A world with two servers that dial the trainer at `port`."""

    world: World
    second: GenerationAgent
    port: int

    def came_by(self, mode: str) -> int:
        """How many versions have come to the servers so."""
        return sum(
            int(sample.value)
            for agent in (self.world.agent, self.second)
            for metric in agent.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "areal_weight_sync_duration_seconds_count" and sample.labels["mode"] == mode
        )

    async def offered(self, trainer: GroupTrainer, version: int, model: int) -> tuple[str, WeightsRef]:
        """Publish a version, and offer it to both servers before the controller wants it."""
        await trainer.members(SERVER, SECOND)
        ref = self.world.prepare(version, model)
        group = await trainer.offer(ref)
        await self.world.controller.want(ref.message())
        return group, ref

    async def hold(self, version: int) -> None:
        """Wait until both servers are ready with a version."""
        policy = self.world.policy(version)
        for server in (SERVER, SECOND):
            await self.world.controller.until(server, lambda state: state.ready and state.policy_id == policy)

    async def sent(self, trainer: GroupTrainer, version: int, model: int) -> str:
        """One version by the group, from offer to ready; answers the group's name."""
        before = self.came_by("group")
        group, _ = await self.offered(trainer, version, model)
        await trainer.send()
        assert (await trainer.sent())["sent"]
        await self.hold(version)
        assert self.came_by("group") == before + 2
        return group

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[list[Answer]]:
        """Two requests always in the making; answers those that ended, once the block and the last two have.

        Two, and one after the other: whenever a version comes, and however fast this machine is, one is in its middle.
        """
        stopped, ended = asyncio.Event(), list[Answer]()

        async def lane(name: str) -> None:
            for turn in range(200):
                if stopped.is_set():
                    break
                ended.extend(await self.world.generate(start_of(f"{name}-{turn}", PROMPT, 400)))

        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(lane("even"))
            await self.world.client.until(lambda: len(self.world.client.answers["even-0"].ids) >= 200)
            lanes.create_task(lane("odd"))
            try:
                yield ended
            finally:
                stopped.set()


@asynccontextmanager
async def servers(models: list[Path], home: Path) -> AsyncIterator[Group]:
    port = free_port()
    address = f"127.0.0.1:{port}"
    async with (
        running_world(models, home, weight_group=address) as world,
        running_agent(world.controller, models, home, server_id=SECOND, weight_group=address) as second,
    ):
        yield Group(world, second, port)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def group(models, tmp_path_factory) -> AsyncIterator[Group]:
    async with servers(models, tmp_path_factory.mktemp("group")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer(group: Group) -> AsyncIterator[GroupTrainer]:
    async with GroupTrainer(group.port) as made:
        yield made


async def test_versions_come_by_one_group_and_an_answer_goes_on_with_the_new_one(group, trainer, models):
    world = group.world
    world.new_fence()
    first = await group.sent(trainer, 0, 0)
    async with group.answering() as answers:
        assert await group.sent(trainer, 1, 1) == first != ""
    both = [world.policy(0), world.policy(1)]
    answer = next(one for one in answers if [policy for policy, _, _ in one.spans] == both)
    split = answer.spans[0][2]
    assert np.allclose(answer.logprobs[:split], hf_logprobs(models[0], PROMPT, answer.ids)[:split], atol=1e-4)
    assert np.allclose(answer.logprobs[split:], hf_logprobs(models[1], PROMPT, answer.ids)[split:], atol=1e-4)
    assert group.came_by("volume") == 0


async def test_a_server_killed_in_mid_broadcast_leaves_the_others_the_volume_and_the_next_version_a_new_group(
    group, trainer
):
    world, volume = group.world, group.came_by("volume")
    world.new_fence()
    before = await group.sent(trainer, 0, 0)
    await group.offered(trainer, 1, 1)
    await trainer.send(hold="bucket 1")
    assert group.second.process.pid is not None
    os.killpg(group.second.process.pid, signal.SIGKILL)
    await trainer.go()
    told = await trainer.sent()
    assert (told["sent"], len(told["faults"])) == (False, 1)
    await group.hold(1)
    assert group.came_by("volume") == volume + 2
    assert await group.sent(trainer, 2, 2) not in (before, "")


async def test_a_trainer_killed_in_mid_broadcast_leaves_the_servers_the_volume_and_its_successor_a_new_group(
    group, trainer
):
    world, volume = group.world, group.came_by("volume")
    world.new_fence()
    before = await group.sent(trainer, 0, 0)
    await group.offered(trainer, 1, 1)
    await trainer.send(hold="bucket 1")
    await trainer.kill()
    await group.hold(1)
    assert group.came_by("volume") == volume + 2
    async with GroupTrainer(group.port) as successor:
        assert await group.sent(successor, 2, 2) not in (before, "")
        ref = world.prepare(3, 0)
        assert await successor.offer(ref) != ""
        await world.publish(4, 1)  # the controller wants another version: what was offered is never sent
        await group.hold(4)
