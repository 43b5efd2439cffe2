"""Workers to test, and what they talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.workflow.tokenizer import Tokenizer
from support.char_tokenizer import write_tokenizer
from support.redis_server import RedisServer
from support.scripted_agent import VOCABULARY
from support.worker_parts import Bench


@pytest.fixture(scope="session")
def worker_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As many ids as the scripted agents sample from."""
    return Tokenizer.from_dir(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), vocab_size=VOCABULARY))


@pytest.fixture(scope="session")
def worker_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for the tests that don't kill it."""
    server = RedisServer.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
async def bench(
    tmp_path: Path, worker_tokenizer: Tokenizer, worker_redis: RedisServer
) -> AsyncIterator[Callable[..., Bench]]:
    """Makes benches; ends them all."""
    made: list[Bench] = []
    worker_redis.flush()

    def make(**fields: Any) -> Bench:
        made.append(Bench(tmp_path, worker_tokenizer, **{"redis": worker_redis, **fields}))
        return made[-1]

    yield make
    for each in made:
        await each.end()
