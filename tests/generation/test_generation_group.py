"""Weights straight from the trainer to servers, each by a group of its own: real processes, one killed or stopped.

Whoever is lost, it alone reads the version from the volume; the others have it by their groups, and the trainer lives.
Nightly: kill and stop at every point of a version's way.
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
from areal.generation.engine_process import RESTARTS
from areal.processes.core import Budget
from generation_parts import SERVER, TOKEN, Answer, World, running_agent, running_world, start_of
from support.engine_models import hf_logprobs
from support.group_agent import GroupAgent
from support.group_trainer import GroupTrainer
from support.redis_server import free_port

pytestmark = [pytest.mark.component, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SECOND, THIRD = "generation-1", "generation-2"
PROMPT = [5, 17, 33, 9, 40]


@dataclass
class Group:
    """A world with two servers that dial the trainer at `port`."""

    world: World
    second: GenerationAgent
    port: int

    def came_by(self, mode: str, *agents: GenerationAgent) -> int:
        """How many versions have come to these servers so, or to both."""
        return sum(
            int(sample.value)
            for agent in agents or (self.world.agent, self.second)
            for metric in agent.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "areal_weight_sync_duration_seconds_count" and sample.labels["mode"] == mode
        )

    async def offered(self, trainer: GroupTrainer, version: int, model: int) -> dict[str, str]:
        """Publish a version, and offer it to both servers before the controller wants it; answers the groups."""
        await trainer.members(SERVER, SECOND)
        ref = self.world.prepare(version, model)
        groups = await trainer.offer(ref)
        await self.world.controller.want(ref.message())
        return groups

    def engine(self) -> int:
        """Process group of the second server's engine."""
        assert self.second.process.pid is not None
        return self.second.process.pid

    async def hold(self, version: int) -> None:
        """Wait until both servers are ready with a version."""
        policy = self.world.policy(version)
        for server in (SERVER, SECOND):
            await self.world.controller.until(server, lambda state: state.ready and state.policy_id == policy)

    async def sent(self, trainer: GroupTrainer, version: int, model: int) -> dict[str, str]:
        """One version by the groups, from offer to ready; answers their names."""
        before = self.came_by("group")
        groups = await self.offered(trainer, version, model)
        await trainer.send()
        assert (await trainer.sent())["sent"] == {SERVER: True, SECOND: True}
        await self.hold(version)
        assert self.came_by("group") == before + 2
        return groups

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
    async with GroupTrainer(group.port, patience_s=5.0) as made:
        yield made


async def test_versions_come_by_the_same_groups_and_an_answer_goes_on_with_the_new_one(group, trainer, models):
    world = group.world
    world.new_fence()
    volume = group.came_by("volume")
    first = await group.sent(trainer, 0, 0)
    async with group.answering() as answers:
        assert await group.sent(trainer, 1, 1) == first
    assert len(set(first.values())) == 2
    both = [world.policy(0), world.policy(1)]
    answer = next(one for one in answers if [policy for policy, _, _ in one.spans] == both)
    split = answer.spans[0][2]
    assert np.allclose(answer.logprobs[:split], hf_logprobs(models[0], PROMPT, answer.ids)[:split], atol=1e-4)
    assert np.allclose(answer.logprobs[split:], hf_logprobs(models[1], PROMPT, answer.ids)[split:], atol=1e-4)
    assert group.came_by("volume") == volume


POINTS = ("offer", "ready", "bucket 0", "bucket 1", "bucket 2", "received", "canary")
LANDING = {("kill", "bucket 1"), ("stop", "bucket 2")}
CELLS = [
    pytest.param(how, point, id=f"{how} at {point}", marks=() if (how, point) in LANDING else pytest.mark.nightly)
    for point in POINTS
    for how in ("kill", "stop")
]


@pytest.mark.parametrize(("how", "point"), CELLS)
async def test_a_lost_server_costs_itself_the_version_and_nobody_else(group, trainer, how, point):
    """The trainer's deadlines are 5 s here; a stopped engine is found by its agent or by the trainer."""
    world, first = group.world, group.world.agent
    group.second.process._budget = Budget(RESTARTS)  # all cells lose the same one
    world.new_fence()

    def lose() -> None:
        os.killpg(group.engine(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    before = await group.sent(trainer, 0, 0)
    by_group, by_volume = group.came_by("group", first), group.came_by("volume", first)
    ref, at = world.prepare(1, 1), f"{SECOND} {point}"
    await trainer.offer(ref, hold=at if point == "offer" else "")
    if point == "offer":
        lose()
        await trainer.go()
        await trainer.offered()
    await world.controller.want(ref.message())
    held = point not in ("offer", "canary")
    await trainer.send(hold=at if held else "")
    if held:
        lose()
        await trainer.go()
    told = await trainer.sent()
    if point == "canary":
        lose()
        await world.controller.until(SECOND, lambda state: not state.live)
    assert told["sent"][SERVER], "the other has it by its group"
    if held and point != "received":
        assert not told["sent"].get(SECOND)
    await world.controller.until(SERVER, lambda state: state.ready and state.policy_id == world.policy(1))
    assert (group.came_by("group", first), group.came_by("volume", first)) == (by_group + 1, by_volume)
    await group.hold(1)  # the lost one too, from the volume
    after = await group.sent(trainer, 2, 2)
    assert after[SERVER] == before[SERVER], "its group is the same"
    assert after[SECOND] != before[SECOND]


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_is_lost_while_it_joins_costs_nobody_else_a_version(group, trainer, how):
    world, first = group.world, group.world.agent
    group.second.process._budget = Budget(RESTARTS)
    world.new_fence()
    before = await group.sent(trainer, 0, 0)
    by_group, by_volume = group.came_by("group", first), group.came_by("volume", first)
    await trainer.hold_join(SECOND)
    os.killpg(group.engine(), signal.SIGKILL)  # so that it joins again
    assert await trainer.held() == f"{SECOND} join"
    os.killpg(group.engine(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    await trainer.go()
    ref = world.prepare(1, 1)
    assert (await trainer.offer(ref))[SERVER] == before[SERVER], "its group is the same"
    await world.controller.want(ref.message())
    await trainer.send()
    assert (await trainer.sent())["sent"] == {SERVER: True}
    await world.controller.until(SERVER, lambda state: state.ready and state.policy_id == world.policy(1))
    assert (group.came_by("group", first), group.came_by("volume", first)) == (by_group + 1, by_volume)
    await group.hold(1)
    after = await group.sent(trainer, 2, 2)
    assert after[SERVER] == before[SERVER]
    assert after[SECOND] != before[SECOND]


AGENT_CELLS = [
    pytest.param(how, point, id=f"{how} at {point}") for point in ("join", *POINTS[:-1]) for how in ("kill", "stop")
]


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "point"), AGENT_CELLS)
async def test_a_lost_agent_costs_nobody_else_a_version(group, trainer, models, tmp_path, how, point):
    """The whole server is a process of its own here: a killed agent takes its engine along, a stopped one doesn't."""
    world, at = group.world, f"{THIRD} {point}"
    world.new_fence()
    before = await group.sent(trainer, 0, 0)
    counts = [group.came_by(mode) for mode in ("group", "volume")]
    if point == "join":
        await trainer.hold_join(THIRD)
    place = (world.controller.address, f"127.0.0.1:{group.port}", models[0], tmp_path, TOKEN)
    async with GroupAgent(THIRD, *place) as lost:

        def lose() -> None:
            lost.send(signal.SIGKILL if how == "kill" else signal.SIGSTOP)

        if point == "join":
            assert await trainer.held() == at
            lose()
            await trainer.go()
        else:
            await trainer.members(SERVER, SECOND, THIRD)
        ref = world.prepare(1, 1)
        offered = await trainer.offer(ref, hold=at if point == "offer" else "")
        if point == "offer":
            lose()
            await trainer.go()
            offered = await trainer.offered()
        assert before.items() <= offered.items(), "the groups of the others are the same"
        await world.controller.want(ref.message())
        held = point not in ("join", "offer")
        await trainer.send(hold=at if held else "")
        if held:
            lose()
            await trainer.go()
        told = (await trainer.sent())["sent"]
        assert (told.pop(SERVER), told.pop(SECOND)) == (True, True)
        assert point == "received" or not any(told.values())
        await group.hold(1)
        assert [group.came_by(mode) for mode in ("group", "volume")] == [counts[0] + 2, counts[1]]
    assert await group.sent(trainer, 2, 2) == before


@pytest.mark.nightly
async def test_a_stopped_engine_that_never_joins_keeps_no_other_from_joining(group, trainer):
    world = group.world
    os.killpg(group.engine(), signal.SIGKILL)
    await world.controller.until(SECOND, lambda state: not state.live)
    await world.controller.until(SECOND, lambda state: state.live)
    os.killpg(group.engine(), signal.SIGSTOP)
    world.new_fence()
    await trainer.members(SERVER)
    ref = world.prepare(0, 0)
    await trainer.offer(ref)
    await world.controller.want(ref.message())
    await trainer.send()
    assert (await trainer.sent())["sent"][SERVER]
    await group.hold(0)
    await group.sent(trainer, 1, 1)


async def test_a_trainer_killed_in_mid_send_leaves_the_servers_the_volume_and_its_successor_new_groups(group, trainer):
    world, volume = group.world, group.came_by("volume")
    world.new_fence()
    before = await group.sent(trainer, 0, 0)
    await group.offered(trainer, 1, 1)
    await trainer.send(hold=f"{SECOND} bucket 1")
    await trainer.kill()
    await group.hold(1)
    assert group.came_by("volume") in (volume + 1, volume + 2)  # the first may have had it all
    async with GroupTrainer(group.port) as successor:
        after = await group.sent(successor, 2, 2)
        assert not set(before.values()) & set(after.values())
        ref = world.prepare(3, 0)
        assert await successor.offer(ref) == after
        await world.publish(4, 1)  # the controller wants another version: what was offered is never sent
        await group.hold(4)
