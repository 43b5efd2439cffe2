"""gRPC channels to other roles, each call with the job's bearer token."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from areal.net import auth, options


def _with_token(details: grpc.aio.ClientCallDetails, token: str) -> grpc.aio.ClientCallDetails:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    metadata.add(*auth.header(token))
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
    )


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_with_token(client_call_details, self._token), request)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_with_token(client_call_details, self._token), request)


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(_with_token(client_call_details, self._token), request_iterator)


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(_with_token(client_call_details, self._token), request_iterator)


def connect(address: str, token: str) -> grpc.aio.Channel:
    """An asynchronous channel to `host:port`. Every call on it carries the token; give each call a timeout."""
    interceptors = [_UnaryUnary(token), _UnaryStream(token), _StreamUnary(token), _StreamStream(token)]
    return grpc.aio.insecure_channel(address, options=options.CLIENT, interceptors=interceptors)


def raise_if_cancelled() -> None:
    """For loops that catch what a call raises: one that is cancelled as its peer goes may raise the peer's error, and
    the cancellation would be lost with it. Raises CancelledError.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
