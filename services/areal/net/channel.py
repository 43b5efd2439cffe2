"""Channels to other roles: asynchronous for services, synchronous for the trainer's loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from areal.net import auth, options


@dataclass(frozen=True)
class _CallDetails(grpc.ClientCallDetails):
    """A call with our header added."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


def _with_token(details: Any, token: str) -> _CallDetails:
    metadata = [*(details.metadata or ()), auth.header(token)]
    return _CallDetails(
        method=details.method,
        timeout=details.timeout,
        metadata=metadata,
        credentials=details.credentials,
        wait_for_ready=getattr(details, "wait_for_ready", None),
        compression=getattr(details, "compression", None),
    )


class _SyncToken(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Adds the bearer header to every synchronous call."""

    def __init__(self, token: str) -> None:
        self._token = token

    def _call(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        return continuation(_with_token(details, self._token), request)

    intercept_unary_unary = _call
    intercept_unary_stream = _call
    intercept_stream_unary = _call
    intercept_stream_stream = _call


def _aio_details(details: grpc.aio.ClientCallDetails, token: str) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    metadata.add(*auth.header(token))
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
    )


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_aio_details(client_call_details, self._token), request)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_aio_details(client_call_details, self._token), request)


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(_aio_details(client_call_details, self._token), request_iterator)


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):  # type: ignore[type-arg]
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(_aio_details(client_call_details, self._token), request_iterator)


def connect(address: str, token: str) -> grpc.aio.Channel:
    """An asynchronous channel to `host:port`. Every call on it carries the token; give each call a timeout."""
    interceptors = [_UnaryUnary(token), _UnaryStream(token), _StreamUnary(token), _StreamStream(token)]
    return grpc.aio.insecure_channel(address, options=options.CLIENT, interceptors=interceptors)


def connect_sync(address: str, token: str) -> grpc.Channel:
    """A blocking channel to `host:port`, for code that owns no event loop."""
    return grpc.intercept_channel(grpc.insecure_channel(address, options=options.CLIENT), _SyncToken(token))
