"""A real Boxes service over loopback, one a test module, where this machine's sandbox reaches T3."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from areal.clients.boxes import Box, BoxClient
from areal.errors import ConfigError
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import boxes_pb2_grpc as rpc
from areal_judge.boxes.registry import BoxBounds
from areal_judge.boxes.service import SERVICE_NAME, BoxSettings, BoxStack, box_stack

TOKEN = "a-token"
GRACE_S = 0.5


@dataclass(frozen=True)
class Served:
    stack: BoxStack
    address: str

    def client(self, holder: str = "") -> BoxClient:
        return BoxClient(self.address, TOKEN, waits=WaitRegistry("test"), holder=holder or uuid.uuid4().hex)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def served() -> AsyncIterator[Served]:
    try:
        async with box_stack(BoxSettings(BoxBounds(boxes=24, grace_s=GRACE_S))) as stack:
            server = GrpcServer("boxes", TOKEN, waits=WaitRegistry("boxes"), progress=ProgressCounter())
            server.add(rpc.add_BoxesServicer_to_server, stack.service, SERVICE_NAME)
            port = await server.start(0)
            yield Served(stack, f"127.0.0.1:{port}")
            await server.stop(1)
    except ConfigError as error:
        pytest.skip(f"this machine has no boxes: {error.message}")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(served: Served) -> AsyncIterator[BoxClient]:
    made = served.client()
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def box(client: BoxClient) -> AsyncIterator[Box]:
    async with client.box(work_s=600) as made:
        yield made
