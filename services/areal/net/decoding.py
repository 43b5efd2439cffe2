"""Refusal of requests that are not the protobuf message of their method: INVALID_ARGUMENT, and one line of log each.

Owns the request deserialisers of this project's services. Without it gRPC answers UNKNOWN and logs a traceback.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from areal.net.auth import Continuation

log = logging.getLogger(__name__)

_OURS = "/areal."
_UNDECODABLE = object()
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class DecodeGuard(grpc.aio.ServerInterceptor):
    """Counts and refuses what can't be decoded; a stream ends with it."""

    def __init__(self) -> None:
        self.refused = 0

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        return handler if handler is None or not method.startswith(_OURS) else self._guarded(handler, method)

    async def _refuse(self, method: str, context: Context) -> None:
        self.refused += 1
        log.warning("a request of %s is not its message (%d such requests so far)", method, self.refused)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request of {method} can't be decoded")

    def _guarded(self, handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def unary_unary(request: Any, context: Context) -> Any:
            if request is _UNDECODABLE:
                await self._refuse(method, context)
            return await handler.unary_unary(request, context)

        async def unary_stream(request: Any, context: Context) -> AsyncIterator[Any]:
            if request is _UNDECODABLE:
                await self._refuse(method, context)
            async with aclosing(handler.unary_stream(request, context)) as answers:
                async for answer in answers:
                    yield answer

        async def stream_unary(requests: AsyncIterator[Any], context: Context) -> Any:
            decoded = _DecodingStream(requests)
            answer = await handler.stream_unary(decoded, context)
            if decoded.broken:
                await self._refuse(method, context)
            return answer

        async def stream_stream(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            decoded = _DecodingStream(requests)
            async with aclosing(handler.stream_stream(decoded, context)) as answers:
                async for answer in answers:
                    yield answer
            if decoded.broken:
                await self._refuse(method, context)

        shapes: dict[tuple[bool, bool], tuple[Any, Any]] = {
            (False, False): (grpc.unary_unary_rpc_method_handler, unary_unary),
            (False, True): (grpc.unary_stream_rpc_method_handler, unary_stream),
            (True, False): (grpc.stream_unary_rpc_method_handler, stream_unary),
            (True, True): (grpc.stream_stream_rpc_method_handler, stream_stream),
        }
        factory, behaviour = shapes[handler.request_streaming, handler.response_streaming]
        guarded: grpc.RpcMethodHandler[Any, Any] = factory(
            behaviour, _decoder(handler.request_deserializer), handler.response_serializer
        )
        return guarded


class _DecodingStream:
    """A stream of requests that ends at the first one that can't be decoded."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests
        self.broken = False

    def __aiter__(self) -> _DecodingStream:
        return self

    async def __anext__(self) -> Any:
        if self.broken:
            raise StopAsyncIteration
        if (request := await anext(self._requests)) is _UNDECODABLE:
            self.broken = True
            raise StopAsyncIteration
        return request


def _decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return _UNDECODABLE

    return decoded
