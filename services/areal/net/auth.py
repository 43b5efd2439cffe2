"""Bearer tokens on every gRPC call.

Owns how a token travels (the `authorization` header) and how a server refuses a call without it. Health checks are
open, because a kubelet has no token; everything else is closed.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

OPEN_PREFIXES = ("/grpc.health.v1.Health/",)  # a probe can't carry a secret

Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]"


def header(token: str) -> tuple[str, str]:
    """The metadata entry that carries `token`."""
    return ("authorization", f"Bearer {token}")


def allowed(method: str, metadata: dict[str, str], token: str) -> bool:
    """Whether a call of `method` with these headers may pass. Compares tokens in constant time."""
    if method.startswith(OPEN_PREFIXES):
        return True
    scheme, _, given = metadata.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


class BearerInterceptor(grpc.aio.ServerInterceptor):
    """Refuses with UNAUTHENTICATED every call without the job's token."""

    def __init__(self, token: str) -> None:
        if not token:
            raise ValueError("an empty token would let everybody in")
        self._token = token

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        metadata = {str(key): str(value) for key, value in handler_call_details.invocation_metadata or ()}
        handler = await continuation(handler_call_details)
        if handler is None or allowed(handler_call_details.method, metadata, self._token):
            return handler
        return _refusal(handler)


def _refusal(handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same shape that answers UNAUTHENTICATED."""

    async def refuse(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is missing")

    async def refuse_stream(_request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is missing")
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
