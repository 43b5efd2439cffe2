"""Weights straight from the trainer into stock SGLang on CPU, by gloo; a trainer that dies leaves it the volume."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from areal.spec.serving import SglangEngine
from generation_parts import SERVER, World, running_world, start_of
from support.engine_models import hf_logprobs
from support.group_trainer import GroupTrainer
from support.redis_server import free_port

pytestmark = [
    pytest.mark.component,
    pytest.mark.sglang_real,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPT = [5, 17, 33, 9, 40]


@dataclass
class Fleet:
    world: World
    port: int

    async def begin(self, trainer: GroupTrainer, version: int, model: int, hold: str = "") -> str:
        """Offer a version, want it, and begin to send it; answers the group's name."""
        await trainer.members(SERVER)
        ref = self.world.prepare(version, model)
        groups = await trainer.offer(ref)
        await self.world.controller.want(ref.message())
        await trainer.send(hold)
        return groups[SERVER]

    async def answers_as(self, version: int, model: Path) -> None:
        await self.world.ready(version)
        (answer,) = await self.world.generate(start_of(f"of {version}", PROMPT, 12))
        assert answer.spans == [(self.world.policy(version), 0, 12)]
        assert np.allclose(answer.logprobs, hf_logprobs(model, PROMPT, answer.ids), atol=1e-5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    engine, port = SglangEngine(type="sglang", max_running_requests=32), free_port()
    address = f"127.0.0.1:{port}"
    async with running_world(models, tmp_path_factory.mktemp("weights"), engine, weight_group=address) as made:
        await made.controller.until(SERVER, lambda state: state.live, deadline_s=300)
        yield Fleet(made, port)


async def test_stock_sglang_takes_versions_by_the_group_and_the_volume_when_the_trainer_dies(fleet, models):
    async with GroupTrainer(fleet.port) as trainer:
        first = await fleet.begin(trainer, 0, 0)
        assert (await trainer.sent())["sent"] == {SERVER: True}
        await fleet.answers_as(0, models[0])
        await fleet.world.running(start_of("long", PROMPT, 300))
        assert await fleet.begin(trainer, 1, 1) == first != ""
        assert (await trainer.sent())["sent"] == {SERVER: True}
        (answer,) = await fleet.world.client.ended("long")
        assert [policy for policy, _, _ in answer.spans] == [fleet.world.policy(0), fleet.world.policy(1)]
        await fleet.answers_as(1, models[1])
        await fleet.begin(trainer, 2, 2, hold=f"{SERVER} bucket 1")
        await trainer.kill()
        await fleet.answers_as(2, models[2])
    async with GroupTrainer(fleet.port) as successor:
        assert await fleet.begin(successor, 3, 0) not in (first, "")
        assert (await successor.sent())["sent"]
        await fleet.answers_as(3, models[0])
