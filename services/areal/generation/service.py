"""The agent's gRPC face: one multiplexed stream a client, and control.

Owns the translation between messages and requests; validates before anything reaches the engine.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import grpc

from areal.errors import DataError
from areal.generation.dispatch import Dispatcher
from areal.generation.limits import ModelLimits, read_ids, read_images, sampling_params
from areal.generation.requests import ClientStream, LiveRequest, Requests
from areal.net import status
from areal.v1 import generation_pb2 as wire
from areal.v1 import generation_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]


class GenerationService(rpc.GenerationServicer):
    """Generate for many clients."""

    def __init__(self, requests: Requests, dispatcher: Dispatcher, limits: ModelLimits) -> None:
        self._requests = requests
        self._dispatcher = dispatcher
        self._limits = limits
        self._numbers = count()

    async def Generate(
        self, request_iterator: AsyncIterator[wire.GenerateCall], context: Context
    ) -> AsyncIterator[wire.GenerateReply]:
        """Starts and cancels come up; deltas and ends go down, several in a message."""
        client = ClientStream()
        reader = asyncio.create_task(self._read(request_iterator, client), name="generate reader")
        try:
            while (reply := await client.next()) is not None:
                yield reply
        finally:
            reader.cancel()
            self._requests.abandon(client)

    async def _read(self, calls: AsyncIterator[wire.GenerateCall], client: ClientStream) -> None:
        try:
            with contextlib.suppress(grpc.RpcError):
                async for call in calls:
                    for cancel in call.cancels:
                        if (live := client.requests.get(cancel.request_id)) is not None:
                            self._requests.cancel(live)
                    for start in call.starts:
                        self._start(start, client)
        finally:
            client.close()

    def _start(self, start: wire.GenerateStart, client: ClientStream) -> None:
        try:
            if start.request_id in client.requests:
                raise DataError(f"request id {start.request_id} is running: ids must be unique")
            ids = read_ids(start, self._limits)
            images, short = read_images(start, self._limits)
        except DataError as error:
            end = wire.GenerateEnd(reason=wire.END_REASON_REFUSED, fault=status.fault(error))
            client.put(wire.GenerateEvent(request_id=start.request_id, end=end))
            return
        rid = f"{next(self._numbers)}.{start.request_id}"
        self._dispatcher.submit(
            LiveRequest(
                start.request_id,
                rid,
                ids,
                sampling_params(start),
                start.floor,
                client,
                start.key if start.HasField("key") else None,
                wants_routes=start.routes and self._limits.routes is not None,
                images=[image.uri for image in images],
                short_ids=short if images else ids,
            )
        )


class ControlService(rpc.GenerationControlServicer):
    """Status and drain."""

    def __init__(self, state: Callable[[], wire.ServerState], drain: Callable[[float], Any]) -> None:
        self._state = state
        self._drain = drain

    async def GetAgentStatus(
        self, request: wire.GetAgentStatusRequest, context: Context
    ) -> wire.GetAgentStatusResponse:
        """The server's state as in every beat to the controller."""
        return wire.GetAgentStatusResponse(state=self._state())

    async def DrainAgent(self, request: wire.DrainAgentRequest, context: Context) -> wire.DrainAgentResponse:
        """Take no new requests, end the running ones."""
        return wire.DrainAgentResponse(ended_requests=await self._drain(request.grace_s or 2.0))
