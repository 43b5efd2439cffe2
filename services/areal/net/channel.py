"""gRPC channels to other roles, each call with the caller's bearer token.

The settings of every channel and server are here, in one place, with the reason for each value.
"""

import asyncio
import json
from typing import Any

import grpc

from areal.net import auth

_INTERCEPTORS = {
    "intercept_unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
    "intercept_unary_stream": grpc.aio.UnaryStreamClientInterceptor,
    "intercept_stream_unary": grpc.aio.StreamUnaryClientInterceptor,
    "intercept_stream_stream": grpc.aio.StreamStreamClientInterceptor,
}  # one object of all four would be taken for the first kind alone


def connect(address: str, token: str) -> grpc.aio.Channel:
    """An asynchronous channel to `host:port`. Every call on it carries the token; give each call a timeout."""

    async def with_token(_self: Any, continuation: Any, details: grpc.aio.ClientCallDetails, asked: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), auth.header(token))
        carrying = (details.method, details.timeout, metadata, details.credentials, details.wait_for_ready)
        return await continuation(grpc.aio.ClientCallDetails(*carrying), asked)

    interceptors = [type(name, (base,), {name: with_token})() for name, base in _INTERCEPTORS.items()]
    return grpc.aio.insecure_channel(address, options=CLIENT, interceptors=interceptors)


def raise_if_cancelled() -> None:
    """For loops that catch what a call raises: one that is cancelled as its peer goes may raise the peer's error, and
    the cancellation would be lost with it. Raises CancelledError.
    """
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError


MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # longer payloads belong in the ledger or on the volume

_SERVICE_CONFIG = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.05s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
        "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1},
    }
)

CLIENT = [
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),  # keepalive alone never noticed a stopped peer within 30 s
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),  # a restarted role should be found within a second
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.service_config", _SERVICE_CONFIG),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a channel is a connection: several to one address reach several pods
]

SERVER = [
    ("grpc.http2.min_ping_interval_without_data_ms", 500),  # or a quiet stream's pings end in "too many pings"
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.max_concurrent_streams", 1_024),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second process on the same port must fail, not share it
]
