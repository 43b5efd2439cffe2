"""The Boxes gRPC service: the registry behind the generated servicer.

A call to an ended box is FAILED_PRECONDITION with its end attached, so that no caller takes one kind of end for
another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc
from areal.errors import ArealError
from areal.net import status
from areal.v1 import boxes_pb2 as pb
from areal.v1 import boxes_pb2_grpc as rpc
from areal.v1 import sandbox_pb2
from areal.values.boxes import DEFAULT_OUTPUT_BYTES, END_KEY, MOST_FILE_BYTES, BoxEndedError

from areal_judge.boxes import census, wire
from areal_judge.boxes.registry import BoxRegistry
from areal_judge.sandbox.host.runner import Sandbox

SERVICE_NAME = "areal.v1.Boxes"
_BEAT_S = 5.0  # of a holder's stream: how often it hears that it is heard

Context = grpc.aio.ServicerContext[Any, Any]


class BoxesService(rpc.BoxesServicer):
    """Calls the registry."""

    def __init__(self, registry: BoxRegistry, sandbox: Sandbox) -> None:
        self._registry = registry
        self._sandbox = sandbox

    async def CreateBox(self, request: pb.CreateBoxRequest, context: Context) -> pb.BoxState:
        try:
            asked = wire.request_of(request)
            new = await self._registry.create(asked, request.holder, request.lease_ms / 1000)
            return self._state(request.id, new=new)
        except (BoxEndedError, ArealError) as error:
            await _refuse(context, error)

    async def RunInBox(self, request: pb.RunInBoxRequest, context: Context) -> pb.RunInBoxResult:
        try:
            result = await self._registry.run(
                request.id,
                request.call,
                wire.language_of(request.language),
                request.source,
                request.timeout_ms / 1000,
                request.output_bytes or DEFAULT_OUTPUT_BYTES,
            )
        except (BoxEndedError, ArealError) as error:
            await _refuse(context, error)
        return wire.result_to_wire(result)

    async def ReadBoxFile(self, request: pb.ReadBoxFileRequest, context: Context) -> pb.ReadBoxFileResult:
        try:
            most = request.most_bytes or MOST_FILE_BYTES
            data, refusal = await self._registry.read(request.id, request.path, most)
        except BoxEndedError as error:
            await _refuse(context, error)
        return pb.ReadBoxFileResult(data=data, refusal=refusal)

    async def WriteBoxFile(self, request: pb.WriteBoxFileRequest, context: Context) -> pb.WriteBoxFileResult:
        if len(request.data) > MOST_FILE_BYTES:
            return pb.WriteBoxFileResult(refusal=f"it is longer than {MOST_FILE_BYTES} bytes")
        try:
            refusal = await self._registry.write(request.id, request.path, request.data, executable=request.executable)
        except BoxEndedError as error:
            await _refuse(context, error)
        return pb.WriteBoxFileResult(refusal=refusal)

    async def RenewBox(self, request: pb.RenewBoxRequest, context: Context) -> pb.BoxState:
        try:
            self._registry.renew(request.id, request.lease_ms / 1000)
            return self._state(request.id, new=False)
        except BoxEndedError as error:
            await _refuse(context, error)

    async def CloseBox(self, request: pb.CloseBoxRequest, context: Context) -> pb.BoxEnd:
        return wire.end_to_wire(request.id, await self._registry.close(request.id))

    async def HoldBoxes(self, request: pb.HoldBoxesRequest, context: Context) -> AsyncIterator[pb.HoldBoxesReply]:
        with self._registry.held(request.holder):
            while True:
                yield pb.HoldBoxesReply(boxes=self._registry.boxes_of(request.holder))
                await asyncio.sleep(_BEAT_S)

    async def CountBoxes(self, request: pb.CountBoxesRequest, context: Context) -> pb.BoxCensus:
        registry = self._registry
        counted = await asyncio.to_thread(census.count, self._sandbox)
        return pb.BoxCensus(
            live=registry.live,
            starting=registry.starting,
            capacity=registry.bounds.boxes,
            created_total=registry.created,
            ended_total=registry.ends.total(),
            processes=counted.processes,
            process_floor=counted.process_floor,
            groups=counted.groups,
            group_floor=counted.group_floor,
            descriptors=counted.descriptors,
        )

    def _state(self, name: str, *, new: bool) -> pb.BoxState:
        left_s, calls = self._registry.state(name)
        tier = sandbox_pb2.SandboxTier.Value(f"SANDBOX_TIER_{self._sandbox.powers.tier.name}")
        return pb.BoxState(id=name, created=new, lease_ms=round(left_s * 1000), calls=calls, tier=tier)


async def _refuse(context: Context, error: BoxEndedError | ArealError) -> NoReturn:
    if isinstance(error, BoxEndedError):
        end = wire.end_to_wire(error.box, error.end).SerializeToString()
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), ((END_KEY, end),))
        raise error
    await status.abort(context, error)
