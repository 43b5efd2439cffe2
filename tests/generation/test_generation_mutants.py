"""Mutation suite of weight updates: an engine that takes weights wrongly is found out and samples nothing from them.

Neighbouring bfloat16 versions differ by last bits, as after one step of training, so that a canary alone could not tell
a stale server. Each mutant is tried with a full version and with a delta.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from areal.generation import engine_command
from areal.spec.serving import EmbeddedEngine
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary
from areal.weights.publish import WeightsRef, open_staging, publish, seal_delta
from areal.weights.shards import TensorSource, write_delta
from areal.weights.verify import open_version
from generation_parts import CANARY, World, running_world, start_of
from safetensors.torch import load_file
from support import mutant_engine
from support.engine_models import hf_logprobs
from support.mutant_engine import DROPPED, LABEL_KEPT, MUTATIONS

pytestmark = pytest.mark.component

PROMPT = [5, 9, 14, 21]
PAGE = Path(__file__).parents[2] / "docs" / "weights.md"
PATHS = ("volume", "delta")


class Versions:
    """Versions of one bfloat16 model, each a few last bits away from the one before."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model, self.number = root, model, -1
        self.words = {
            name: tensor.to(torch.bfloat16).view(torch.int16).numpy()
            for name, tensor in load_file(model / "model.safetensors").items()
        }
        logprobs = hf_logprobs(model, list(CANARY[:1]), list(CANARY[1:]))
        self.canary = Canary(token_ids=CANARY, logprobs=(0.0, *logprobs), tolerance=2.0)
        self.files = {"config.json": model / "config.json"}
        self.last: WeightsRef | None = None

    def sources(self) -> list[TensorSource]:
        return [(name, "BF16", words.shape, words) for name, words in self.words.items()]

    def next(self, path: str) -> WeightsRef:
        """Publish the next version, full or as a delta."""
        self.number += 1
        policy, before = PolicyId(self.number, 1), self.words
        random = np.random.default_rng(self.number)
        self.words = {
            name: words ^ np.where(random.permutation(words.size).reshape(words.shape) < 1 + words.size // 100, 1, 0)
            .astype(np.int16)
            for name, words in before.items()
        }  # fmt: skip
        if path == "volume" or self.last is None:
            self.last = publish(self.root, policy, self.sources(), self.canary, self.files)
            return self.last
        staging = open_staging(self.root, policy)
        part = write_delta(staging, 0, before, self.sources())
        base = open_version(self.last.path, self.last.manifest_digest)
        self.last = seal_delta(self.root, staging, policy, [part], base, self.canary, self.files)
        return self.last


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mutant(models, tmp_path_factory) -> AsyncIterator[tuple[World, Versions, Path]]:
    """An agent with the mutant engine, the versions it is offered, and the file that names the mutation."""
    home = tmp_path_factory.mktemp("mutants")
    switch, real = home / "mutation", engine_command.launch

    def launch(*args, **options) -> engine_command.Launch:
        made = real(*args, **options)
        argv = ["support.mutant_engine" if word == "areal.engine.main" else word for word in made.argv]
        path = os.pathsep.join([str(Path(mutant_engine.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        return engine_command.Launch(argv, {**made.env, mutant_engine.VARIABLE: str(switch), "PYTHONPATH": path})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_command, "launch", launch)
        async with running_world(models, home, EmbeddedEngine(dtype="bfloat16", max_running_requests=8)) as world:
            versions = Versions(home / "volume", models[0])
            ref = versions.next("volume")
            await world.controller.want(ref.message())
            await world.until(lambda state: state.ready and state.policy_id == str(ref.policy_id))
            yield world, versions, switch


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_mutated_server_is_named_at_once_and_samples_nothing(mutant, name, path):
    world, versions, switch = mutant
    request = f"{path} {name}"
    await world.running(start_of(request, PROMPT, 450))
    switch.write_text(name)
    ref = versions.next(path)
    policy = str(ref.policy_id)
    await world.controller.want(ref.message())
    state = await world.until(lambda state: state.refused.policy_id == policy)
    assert state.refused.tries == 1
    words = "says that it serves" if name == LABEL_KEPT else "tensor '"
    assert words in state.refused.reason, state.refused.reason
    await world.client.ended(request)
    sampled = {policy for answer in world.client.answers.values() for policy, _, _ in answer.spans}
    assert policy not in sampled
    switch.unlink()
    await world.until(lambda state: state.ready and state.policy_id == policy)
    (healed,) = await world.generate(start_of(f"healed {request}", PROMPT, 4))
    assert healed.spans == [(policy, 0, 4)]


def test_the_page_has_a_row_for_every_mutation():
    rows = [line for line in PAGE.read_text().splitlines() if line.endswith("| 0 | 0 |")]
    assert [row.split("|")[1].strip() for row in rows] == list(MUTATIONS)
    assert DROPPED in MUTATIONS
