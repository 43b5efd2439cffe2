"""The agent's stream to the controller, alone."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from areal.generation.controller_link import ControllerLink
from areal.observe.progress import ProgressCounter
from areal.observe.waits import WaitRegistry
from areal.v1 import generation_pb2 as generation


async def test_a_cancellation_that_a_call_swallows_still_ends_the_stream(monkeypatch):
    """The core raises an error of its own when a call is cancelled while its peer goes."""
    link = ControllerLink(
        "127.0.0.1:1",
        "token",
        name="s",
        incarnation="i",
        state=generation.ServerState,
        on_orders=lambda _: None,
        progress=ProgressCounter(),
        waits=WaitRegistry("s"),
    )
    streaming = asyncio.Event()

    async def stream() -> None:
        streaming.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
            ) from None

    monkeypatch.setattr(link, "_stream", stream)
    running = asyncio.create_task(link.run())
    async with asyncio.timeout(10):
        await streaming.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
