"""A gateway over a scripted engine, for the tests over HTTP: at the worker itself, and through the gateway role."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from areal.gateway.session import SessionLimits
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import HERMES, write_chat_tokenizer
from support.gateway_scene import Scene, scene_of


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(params=["worker", "gateway"])
def through(request: pytest.FixtureRequest) -> str:
    """Where agents call their sessions."""
    return str(request.param)


@pytest.fixture
async def scene(tokenizer: Tokenizer, through: str) -> AsyncIterator[Scene]:
    async with scene_of(tokenizer, through, SessionLimits(16, 4096, 32)) as made:
        yield made


@pytest.fixture
async def tool_scene(tmp_path_factory: pytest.TempPathFactory, through: str) -> AsyncIterator[Scene]:
    """A model whose template knows tools."""
    tokenizer = Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("hermes"), HERMES))
    async with scene_of(tokenizer, through, SessionLimits(64, 4096, 32)) as made:
        yield made
