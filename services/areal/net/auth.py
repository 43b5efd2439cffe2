"""Bearer tokens on every gRPC call.

Owns how a token travels (the `authorization` header) and how a server refuses a call: UNAUTHENTICATED without a token
that it knows, PERMISSION_DENIED for a method that the token doesn't open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from areal.method_access import MethodAccess

Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]"


def header(token: str) -> tuple[str, str]:
    """The metadata entry that carries `token`."""
    return ("authorization", f"Bearer {token}")


class BearerInterceptor(grpc.aio.ServerInterceptor):
    """Refuses what the server's access refuses, in the shape of the method that was called."""

    def __init__(self, access: MethodAccess) -> None:
        self._access = access

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        metadata = {str(key): str(value) for key, value in handler_call_details.invocation_metadata or ()}
        handler = await continuation(handler_call_details)
        refusal = self._access.refusal(handler_call_details.method, metadata)
        if handler is None or refusal is None:
            return handler
        codes = grpc.StatusCode
        return _refusing(handler, codes.PERMISSION_DENIED if refusal.known else codes.UNAUTHENTICATED, refusal.why)


def _refusing(
    handler: grpc.RpcMethodHandler[Any, Any], code: grpc.StatusCode, why: str
) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same shape that answers with a status."""

    async def refuse(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(code, why)

    async def refuse_stream(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(code, why)
        yield None

    factories: dict[tuple[bool, bool], Any] = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    behaviour = refuse_stream if handler.response_streaming else refuse
    factory = factories[(handler.request_streaming, handler.response_streaming)]
    refused: grpc.RpcMethodHandler[Any, Any] = factory(
        behaviour, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )
    return refused
