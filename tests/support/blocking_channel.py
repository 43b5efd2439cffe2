"""A blocking gRPC channel for tests that own no event loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc
from areal.net import auth, channel


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any = None
    wait_for_ready: bool | None = None
    compression: Any = None


class _Token(grpc.UnaryUnaryClientInterceptor):
    """Adds the bearer header to every call."""

    def __init__(self, token: str) -> None:
        self._header = auth.header(token)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(_Details(details.method, details.timeout, [self._header]), request)


def connect_sync(address: str, token: str) -> grpc.Channel:
    """A channel to `host:port`, for calls that have one request and one answer."""
    return grpc.intercept_channel(grpc.insecure_channel(address, options=channel.CLIENT), _Token(token))
