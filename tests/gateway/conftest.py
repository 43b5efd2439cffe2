"""A gateway over a scripted engine, for the tests over HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from areal.gateway.core import Gateway
from areal.gateway.http import GatewayServer
from areal.gateway.session import Limits
from areal.gateway.templates.template import Template
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import HERMES, write_chat_tokenizer
from support.gateway_scene import Engine, Scene


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
async def scene(tokenizer: Tokenizer) -> AsyncIterator[Scene]:
    server = GatewayServer(Gateway(Template(tokenizer), secret=b"s", clock=time.monotonic), tokenizer)
    server.start()
    engine = Engine(tokenizer)
    access = server.open("3.1", engine, Limits(16, 4096, 32), lives_s=600)
    made = Scene(server, engine, access)
    yield made
    engine.let.set()
    engine.rest.set()
    await made.client.aclose()
    await server.stop()


@pytest.fixture
async def tool_scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """A model whose template knows tools."""
    tokenizer = Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("hermes"), HERMES))
    server = GatewayServer(Gateway(Template(tokenizer), secret=b"s", clock=time.monotonic), tokenizer)
    server.start()
    engine = Engine(tokenizer)
    made = Scene(server, engine, server.open("3.1", engine, Limits(64, 4096, 32), lives_s=600))
    yield made
    await made.client.aclose()
    await server.stop()
