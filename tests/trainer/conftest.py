"""A model small enough for a test, and a world to train it in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from areal_trainer.engine.group import RankGroup
from support.redis_server import RedisServer
from support.trainer_parts import tiny_model
from support.trainer_world import World


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of two layers, random weights, 24 token ids."""
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankGroup]:
    """One rank, alone."""
    made = RankGroup()
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for all tests that don't kill it."""
    server = RedisServer.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def make_world(tmp_path: Path, model_path: Path, shared_redis: RedisServer) -> Iterator[Callable[..., World]]:
    """Worlds of this test: an empty ledger, a scripted controller, a run directory of its own each."""
    shared_redis.flush()
    made: list[World] = []

    def make(name: str = "run", **fields: Any) -> World:
        world = World(root=tmp_path / name, model=model_path, **{"redis": shared_redis, **fields}).start()
        made.append(world)
        return world

    yield make
    for world in made:
        world.stop()
