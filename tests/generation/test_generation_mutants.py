"""Mutation suite of weight updates: an engine that takes weights wrongly is found out and samples nothing from them.

Neighbouring bfloat16 versions differ by last bits, as after one step of training, so that a canary alone could not tell
a stale server. A landing tries each mutant on one way of bringing weights, and each way with some; `make nightly` each
mutant on every way: a full version, a delta, straight from the trainer by a process group and, where that can be, an
adapter.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from areal.generation import engine_command
from areal.spec.serving import EmbeddedEngineBlock
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary
from areal.weights.publish import WeightsRef, open_staging, publish, seal_delta
from areal.weights.shards import TensorSource, write_delta
from areal.weights.verify import open_version
from generation_parts import CANARY, SERVER, RawClient, World, running_agent, running_world, start_of
from safetensors.torch import load_file, save_file
from support import mutant_engine
from support.adapter_versions import AdapterVersions
from support.engine_models import hf_logprobs
from support.group_trainer import GroupTrainer
from support.mutant_engine import DROPPED, LABEL_KEPT, MUTATIONS, OF_ADAPTERS
from support.redis_server import free_port

pytestmark = pytest.mark.component

PROMPT = [5, 9, 14, 21]
PAGE = Path(__file__).parents[2] / "docs" / "weights.md"
PATHS = ("volume", "delta", "group")
BUCKETS = ("last bucket dropped", "embeddings untied")  # of weights that an adapter leaves as they are
NEVER = "–"
ENGINE = EmbeddedEngineBlock(dtype="bfloat16", max_running_requests=8)
STALE = "one of three servers stale"
CHANGED = 0.02  # of all words, by their last bit
DEEP = 0.02  # size of an adapter that thirty layers bear
EVERY_WAY = [
    pytest.param(name, path, marks=() if number % len(PATHS) == PATHS.index(path) else pytest.mark.nightly)
    for number, name in enumerate(MUTATIONS)
    for path in PATHS
]
TARGETS = ("q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Versions:
    """Versions of one bfloat16 model, each a few last bits away from the one before."""

    def __init__(self, root: Path, model: Path, adapter_size: float = 1.0) -> None:
        self.root, self.model, self.number = root, model, -1
        self.words = {
            name: tensor.to(torch.bfloat16).view(torch.int16).numpy()
            for name, tensor in load_file(model / "model.safetensors").items()
        }
        logprobs = hf_logprobs(model, list(CANARY[:1]), list(CANARY[1:]))
        self.canary = Canary(token_ids=CANARY, logprobs=(0.0, *logprobs), tolerance=2.0)
        self.files = {"config.json": model / "config.json"}
        self.last: WeightsRef | None = None
        self.adapters = AdapterVersions(root, model, TARGETS, CANARY, adapter_size)

    def sources(self) -> list[TensorSource]:
        return [(name, "BF16", words.shape, words) for name, words in self.words.items()]

    def next(self, path: str) -> WeightsRef:
        """Publish the next version: full, as a delta, or as an adapter of the model that the engine started with."""
        self.number += 1
        policy, before = PolicyId(self.number, 1), self.words
        if path == "adapter":
            return self.adapters.publish(policy, step=2**-9, dtype=torch.bfloat16, tolerance=2.0)
        random = np.random.default_rng(self.number)
        self.words = {
            name: words ^ (random.random(words.shape, np.float32) < CHANGED).astype(np.int16)
            for name, words in before.items()
        }
        if path == "volume" or self.last is None:
            self.last = publish(self.root, policy, self.sources(), self.canary, self.files)
            return self.last
        staging = open_staging(self.root, policy)
        part = write_delta(staging, 0, before, self.sources())
        base = open_version(self.last.path, self.last.manifest_digest)
        self.last = seal_delta(self.root, staging, policy, [part], base, self.canary, self.files)
        return self.last


@asynccontextmanager
async def mutated_world(
    models: list[Path], home: Path, path: str, adapter_size: float = 1.0
) -> AsyncIterator[tuple[World, Versions, Path]]:
    """An agent with the mutant engine, the versions it is offered, and the file that names the mutation."""
    switch, real = home / "mutation", engine_command.launch

    def launch(*args, **options) -> engine_command.Launch:
        made = real(*args, **options)
        argv = ["support.mutant_engine" if word == "areal.engine.main" else word for word in made.argv]
        search = os.pathsep.join([str(Path(mutant_engine.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        return engine_command.Launch(argv, {**made.env, mutant_engine.VARIABLE: str(switch), "PYTHONPATH": search})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_command, "launch", launch)
        trainer = f"127.0.0.1:{free_port()}" if path == "volume" else None
        async with running_world(models, home, ENGINE, weight_group=trainer) as world:
            versions = Versions(home / "volume", models[0], adapter_size)
            ref = versions.next(path)
            await world.controller.want(ref.message())
            await world.until(lambda state: state.ready and state.policy_id == str(ref.policy_id))
            yield world, versions, switch


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mutant(models, tmp_path_factory) -> AsyncIterator[tuple[World, Versions, Path]]:
    async with mutated_world(models, tmp_path_factory.mktemp("mutants"), "volume") as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer(mutant) -> AsyncIterator[GroupTrainer]:
    """What sends versions to the mutant engine by a process group."""
    async with GroupTrainer(int(mutant[0].agent.settings.weight_group.rpartition(":")[2])) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(models, tmp_path_factory) -> AsyncIterator[tuple[World, Versions, Path]]:
    home = tmp_path_factory.mktemp("adapters")
    base = Path(shutil.copytree(models[0], home / "base"))  # in bfloat16, so that the engine can tell its checksums
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(base / "model.safetensors").items()}
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    async with mutated_world([base], home, "adapter") as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(smollm2, tmp_path_factory) -> AsyncIterator[tuple[World, Versions, Path]]:
    async with mutated_world([smollm2], tmp_path_factory.mktemp("real"), "delta") as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_adapted(smollm2, tmp_path_factory) -> AsyncIterator[tuple[World, Versions, Path]]:
    async with mutated_world([smollm2], tmp_path_factory.mktemp("real-adapters"), "adapter", DEEP) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("name", "path"), EVERY_WAY)
async def test_a_mutated_server_is_named_at_once_and_samples_nothing(mutant, trainer, name, path):
    policy, sampled = await refused_and_healed(mutant, name, path, trainer if path == "group" else None)
    assert policy not in sampled


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "name",
    [
        *OF_ADAPTERS,
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in MUTATIONS
            if name not in BUCKETS and name != DROPPED
        ),
        DROPPED,
    ],
)
async def test_a_server_with_a_wrong_adapter_is_named_at_once_and_samples_nothing(adapted, name):
    policy, sampled = await refused_and_healed(adapted, name, "adapter")
    assert policy not in sampled


@pytest.mark.asyncio(loop_scope="module")
async def test_one_stale_server_of_three_samples_nothing_for_who_needs_the_new_version(mutant):
    world, versions, switch = mutant
    async with (
        running_agent(world.controller, world.models, world.volume, ENGINE, server_id="generation-1") as second,
        running_agent(world.controller, world.models, world.volume, ENGINE, server_id="generation-2") as third,
    ):
        switch.write_text(DROPPED)
        ref = versions.next("volume")
        policy = str(ref.policy_id)
        await world.controller.want(ref.message())
        state = await world.until(lambda state: state.refused.policy_id == policy)
        assert state.refused.tries == 1
        asked = start_of("stale", PROMPT, 8, floor=ref.policy_id.version)
        (stale,) = await world.generate(asked)
        assert (stale.reason, stale.ids) == ("BELOW_FLOOR", [])
        for agent in (second, third):
            server = agent.settings.server_id
            await world.controller.until(server, lambda state: state.ready and state.policy_id == policy)
            client = RawClient(agent.address)
            client.start(asked)
            (answer,) = await client.ended("stale")
            assert answer.spans == [(policy, 0, 8)]
            await client.close()
        switch.unlink()
        await world.until(lambda state: state.ready and state.policy_id == policy)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_mutated_server_of_a_real_model_is_named_at_once_and_samples_nothing(real, name):
    policy, sampled = await refused_and_healed(real, name, "delta")
    assert policy not in sampled


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", OF_ADAPTERS)
async def test_a_server_of_a_real_model_with_a_wrong_adapter_is_named_at_once(real_adapted, name):
    policy, sampled = await refused_and_healed(real_adapted, name, "adapter")
    assert policy not in sampled


async def refused_and_healed(
    of: tuple[World, Versions, Path], name: str, path: str, trainer: GroupTrainer | None = None
) -> tuple[str, set[str]]:
    """The policy that was mutated, named and refused, and the policies of all tokens that were sampled till then."""
    world, versions, switch = of
    request = f"{path} {name}"
    await world.running(start_of(request, PROMPT, 450))
    switch.write_text(name)
    ref = versions.next("volume" if trainer is not None else path)
    policy = str(ref.policy_id)
    if trainer is not None:
        await trainer.members(SERVER)
        assert list(await trainer.offer(ref)) == [SERVER]
    await world.controller.want(ref.message())
    if trainer is not None:
        await trainer.send()
        assert (await trainer.sent())["sent"] == {SERVER: True}
    state = await world.until(lambda state: state.refused.policy_id == policy)
    assert state.refused.tries == 1
    words = "says that it serves" if name == LABEL_KEPT else "tensor '"
    assert words in state.refused.reason, state.refused.reason
    await world.client.ended(request)
    sampled = {made_by for answer in world.client.answers.values() for made_by, _, _ in answer.spans}
    switch.unlink()
    await world.until(lambda state: state.ready and state.policy_id == policy)
    (healed,) = await world.generate(start_of(f"healed {request}", PROMPT, 4))
    assert healed.spans == [(policy, 0, 4)]
    return policy, sampled


def test_the_page_has_a_row_for_every_mutation_and_path():
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()]
    rows = {row[0]: row[1:] for row in cells if len(row) == 5 and set(row[1:]) <= {"0", NEVER}}
    assert rows == {
        **{name: ["0", "0", "0", NEVER if name in BUCKETS else "0"] for name in MUTATIONS},
        **{name: [NEVER, NEVER, NEVER, "0"] for name in OF_ADAPTERS},
        STALE: ["0", NEVER, NEVER, NEVER],
    }
    assert DROPPED in MUTATIONS
