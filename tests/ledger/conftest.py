"""Fixtures of the ledger's tests: one real Redis a test session, emptied for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.redis_server import RedisServer


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for all tests that don't kill it."""
    server = RedisServer.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """An empty server."""
    shared_redis.flush()
    return shared_redis


@pytest.fixture
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that the test may kill."""
    server = RedisServer.start(tmp_path_factory.mktemp("own-redis"))
    yield server
    server.stop()
