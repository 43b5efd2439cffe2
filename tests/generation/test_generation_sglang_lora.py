"""Adapters beside each other in stock SGLang on CPU: a version is loaded while answers of the one before go on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from areal.generation.engine_command import AdapterRoom
from areal.spec.serving import SglangEngine
from areal.values.policy import PolicyId
from areal.weights.publish import WeightsRef
from generation_parts import CANARY, World, running_world, start_of
from support.adapter_versions import RANK, AdapterVersions

pytestmark = [
    pytest.mark.component,
    pytest.mark.sglang_real,
    pytest.mark.nightly,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
]

PROMPT = [5, 17, 33, 9, 40]
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SLOTS = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sglang(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    engine = SglangEngine(type="sglang", max_running_requests=8)
    room = AdapterRoom(RANK, TARGETS, SLOTS)
    async with running_world(models, tmp_path_factory.mktemp("weights"), engine, room) as made:
        await made.controller.until("generation-0", lambda state: state.live, deadline_s=200)
        yield made


@pytest.fixture(scope="module")
def adapters(sglang: World) -> AdapterVersions:
    return AdapterVersions(sglang.volume, sglang.models[0], TARGETS, CANARY)


def prepare(world: World, adapters: AdapterVersions, version: int, canary_off: float = 0.0) -> WeightsRef:
    policy = PolicyId.parse(world.policy(version))
    return adapters.publish(policy, step=0.02, dtype=torch.float32, tolerance=1e-3, canary_off=canary_off)


async def serve(world: World, adapters: AdapterVersions, version: int) -> None:
    await world.controller.want(prepare(world, adapters, version).message())
    await world.ready(version)


def close(ours: list[float], theirs: list[float]) -> bool:
    return bool(np.allclose(ours, theirs, atol=1e-4))


async def test_a_new_adapter_leaves_running_answers_with_theirs(sglang, adapters):
    await serve(sglang, adapters, 0)
    await sglang.running(start_of("long", PROMPT, 300))
    ref = prepare(sglang, adapters, 1)
    await sglang.controller.want(ref.message())
    await sglang.ready(1)
    assert sglang.client.answers["long"].end is None
    (fresh,) = await sglang.generate(start_of("fresh", PROMPT, 12))
    assert fresh.spans == [(sglang.policy(1), 0, 12)]
    assert close(fresh.logprobs, adapters.logprobs(PROMPT, fresh.ids))
    (long,) = await sglang.client.ended("long")
    assert long.spans == [(sglang.policy(0), 0, 300)]
    assert not close(long.logprobs, adapters.logprobs(PROMPT, long.ids)), "version 0 made it"


async def test_the_oldest_adapter_gives_its_room(sglang, adapters):
    await sglang.running(start_of("oldest", PROMPT, 450))
    await serve(sglang, adapters, 2)
    await serve(sglang, adapters, 3)
    await serve(sglang, adapters, 4)
    (oldest,) = await sglang.client.ended("oldest")
    assert oldest.reason == "ABORTED"
    assert oldest.spans == [(sglang.policy(1), 0, len(oldest.ids))]


async def test_a_failed_canary_leaves_the_version_before_in_service(sglang, adapters):
    await sglang.running(start_of("through", PROMPT, 300))
    await sglang.controller.want(prepare(sglang, adapters, 5, canary_off=0.5).message())
    state = await sglang.until(lambda state: state.refused.policy_id == sglang.policy(5))
    assert "canary" in state.refused.reason
    assert state.ready
    assert state.policy_id == sglang.policy(4)
    (through,) = await sglang.client.ended("through")
    assert through.spans == [(sglang.policy(4), 0, 300)]
    await serve(sglang, adapters, 6)


async def test_an_adapter_of_queries_and_values_alone_leaves_keys_as_they_are(models, tmp_path):
    targets = ("q_proj", "v_proj")  # what peft adapts unless told, and most published adapters have
    engine = SglangEngine(type="sglang", max_running_requests=8)
    async with running_world(models, tmp_path, engine, AdapterRoom(RANK, targets, SLOTS)) as world:
        await world.controller.until("generation-0", lambda state: state.live, deadline_s=200)
        adapters = AdapterVersions(world.volume, world.models[0], targets, CANARY)
        await serve(world, adapters, 0)
        (answer,) = await world.generate(start_of("alone", PROMPT, 12))
        assert close(answer.logprobs, adapters.logprobs(PROMPT, answer.ids))
        before = adapters.logprobs(PROMPT, answer.ids)
        await serve(world, adapters, 1)
        assert not close(before, adapters.logprobs(PROMPT, answer.ids)), "the two versions differ"
        (after,) = await world.generate(start_of("after", PROMPT, 12))
        assert close(after.logprobs, adapters.logprobs(PROMPT, after.ids))
