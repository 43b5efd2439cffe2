"""Bearer tokens on every gRPC call, and access control by method.

Owns how a token travels (the `authorization` header) and which calls a server refuses: those without a token that it
knows, and those of methods that the token's owner may not call. Health checks are open, because a kubelet has no token.
A server holds digests, so that whoever reads them can call nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

OPEN_PREFIXES = ("/grpc.health.v1.Health/",)  # a probe can't carry a secret

Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]"
Refusal: TypeAlias = "tuple[grpc.StatusCode, str]"


def header(token: str) -> tuple[str, str]:
    """The metadata entry that carries `token`."""
    return ("authorization", f"Bearer {token}")


def digest(token: str) -> str:
    """SHA-256 of a token, in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


@dataclass(frozen=True)
class MethodAccess:
    """Whose tokens a server knows, and which methods each opens."""

    callers: Mapping[str, str]  # digest of a token → whose it is
    methods: Mapping[str, frozenset[str]] | None  # caller → paths, such as /areal.v1.Rollout/Work; None: all to all

    def refusal(self, method: str, metadata: Mapping[str, str]) -> Refusal | None:
        """Why a call of `method` with these headers may not pass; None when it may.

        Tokens are looked up by digest: how long that takes says nothing about a token.
        """
        if method.startswith(OPEN_PREFIXES):
            return None
        scheme, _, given = metadata.get("authorization", "").partition(" ")
        caller = self.callers.get(digest(given.strip())) if scheme.lower() == "bearer" else None
        if caller is None:
            return grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is missing"
        if self.methods is None or method in self.methods.get(caller, ()):
            return None
        return grpc.StatusCode.PERMISSION_DENIED, f"the token of {caller} doesn't open {method.lstrip('/')} here"


NOBODY = MethodAccess({}, {})
"""Health checks pass, and nothing else."""


def one_token(token: str) -> MethodAccess:
    """One token that opens every method: a service for one client, or a job of an older version."""
    if not token:
        raise ValueError("an empty token would let everybody in")
    return MethodAccess({digest(token): "its owner"}, None)


class BearerInterceptor(grpc.aio.ServerInterceptor):
    """Refuses with UNAUTHENTICATED every call without a known token, with PERMISSION_DENIED what that doesn't open."""

    def __init__(self, access: MethodAccess) -> None:
        self._access = access

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        metadata = {str(key): str(value) for key, value in handler_call_details.invocation_metadata or ()}
        handler = await continuation(handler_call_details)
        refusal = self._access.refusal(handler_call_details.method, metadata)
        return handler if handler is None or refusal is None else _refusing(handler, *refusal)


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
