"""The Sandbox gRPC service: `handlers` behind the generated servicer.

A full queue is RESOURCE_EXHAUSTED with a hint for single calls, an unfit suite INVALID_ARGUMENT.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc
from areal.errors import DataError
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc

from areal_judge.judge.dispatch.values import RefusedError
from areal_judge.server.handlers import SandboxHandlers

SERVICE_NAME = "areal.v1.Sandbox"
RETRY_AFTER = "retry-after-ms"

Context = grpc.aio.ServicerContext[Any, Any]


class SandboxService(rpc.SandboxServicer):
    """Calls the handlers."""

    def __init__(self, handlers: SandboxHandlers) -> None:
        self._handlers = handlers

    async def Judge(self, request: pb.JudgeRequest, context: Context) -> pb.JudgeResult:
        result = await self._handlers.judge(request, context.time_remaining)
        await _turn_away(context, result)
        return result

    async def JudgeBatch(
        self, request_iterator: AsyncIterator[pb.JudgeRequest], context: Context
    ) -> AsyncIterator[pb.JudgeResult]:
        async with aclosing(self._handlers.judge_batch(request_iterator, context.time_remaining)) as results:
            async for result in results:
                yield result

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> pb.ExecuteResult:
        result = await self._handlers.execute(request, context.time_remaining)
        await _turn_away(context, result)
        return result

    async def ExecuteStream(
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Context
    ) -> AsyncIterator[pb.ExecuteResult]:
        async with aclosing(self._handlers.execute_stream(request_iterator, context.time_remaining)) as results:
            async for result in results:
                yield result

    async def VerifyMath(self, request: pb.MathRequest, context: Context) -> pb.MathResult:
        return await self._handlers.verify_math(request)

    async def VerifyMathBatch(
        self, request_iterator: AsyncIterator[pb.MathRequest], context: Context
    ) -> AsyncIterator[pb.MathResult]:
        async with aclosing(self._handlers.verify_math_batch(request_iterator)) as results:
            async for result in results:
                yield result

    async def PutSuite(self, request: pb.Suite, context: Context) -> pb.SuiteRef:
        try:
            return await self._handlers.put_suite(request)
        except (DataError, RefusedError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def Capabilities(self, request: pb.CapabilitiesRequest, context: Context) -> pb.SandboxCapabilities:
        return await self._handlers.capabilities(request)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResult:
        return await self._handlers.cancel(request)


async def _turn_away(context: Context, result: pb.JudgeResult | pb.ExecuteResult) -> None:
    if result.status == pb.SANDBOX_STATUS_REJECTED_OVERLOAD:
        hint = ((RETRY_AFTER, str(result.retry_after_ms)),)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, result.message, hint)
