"""Agents beside real engines: one that the tests of a module share, and fresh ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from generation_parts import RawClient, World, running_world
from support.engine_models import make_model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three models that differ in their weights only; the first is the start model."""
    root = tmp_path_factory.mktemp("generation-models")
    return [make_model(root / str(seed), seed) for seed in range(3)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with running_world(models, tmp_path_factory.mktemp("weights")) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared: World) -> AsyncIterator[World]:
    """The shared agent with a client of its own and a new fence, so that no test's policies meet another's."""
    client = RawClient(shared.agent.address)
    try:
        yield World(shared.agent, shared.controller, client, shared.models, shared.volume, shared.fences)
    finally:
        await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(models: list[Path], tmp_path: Path) -> AsyncIterator[World]:
    """An agent for a test that ends it, breaks it, or needs it without weights."""
    async with running_world(models, tmp_path / "weights") as made:
        yield made
