"""gRPC channels to other roles, each call with the caller's bearer token.

The settings of every channel and server are here, in one place, with the reason for each value.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import grpc

from areal import tls
from areal.net import auth
from areal.tls import TlsIdentity

_INTERCEPTORS = {
    "intercept_unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
    "intercept_unary_stream": grpc.aio.UnaryStreamClientInterceptor,
    "intercept_stream_unary": grpc.aio.StreamUnaryClientInterceptor,
    "intercept_stream_stream": grpc.aio.StreamStreamClientInterceptor,
}  # one object of all four would be taken for the first kind alone


_SHAPES = [name.removeprefix("intercept_") for name in _INTERCEPTORS]


def connect(
    address: str,
    token: str | None,
    *,
    own: Callable[[], TlsIdentity | None] = tls.identity,
    name: str | None = None,
    options: Sequence[tuple[str, Any]] | None = None,
) -> grpc.aio.Channel:
    """An asynchronous channel to `host:port`. Every call on it carries the token; give each call a timeout.

    `own` says with which certificate, `name` which name the server's must have where that isn't the host.
    """

    async def with_token(_self: Any, continuation: Any, details: grpc.aio.ClientCallDetails, asked: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), auth.header(token or ""))
        carrying = (details.method, details.timeout, metadata, details.credentials, details.wait_for_ready)
        return await continuation(grpc.aio.ClientCallDetails(*carrying), asked)

    kinds = _INTERCEPTORS.items() if token is not None else ()
    interceptors = [type(kind, (base,), {kind: with_token})() for kind, base in kinds]
    options = [*(options or CLIENT), *((("grpc.ssl_target_name_override", name),) if name else ())]
    if own() is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    dial = partial(grpc.aio.secure_channel, address, options=options, interceptors=interceptors)
    return cast(grpc.aio.Channel, _RenewedChannel(own, dial))


def blocking(address: str) -> grpc.Channel:
    """A blocking channel without a token, with the certificate of now: for calls that begin soon."""
    if (own := tls.identity()) is None:
        return grpc.insecure_channel(address, options=CLIENT)
    return grpc.secure_channel(address, _credentials(own), options=CLIENT)


def _credentials(own: TlsIdentity) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(own.authorities, own.key, own.certificate)


class _RenewedChannel:
    """A channel that dials again once its certificate changed; calls that go on end on the old connection."""

    def __init__(self, own: Callable[[], TlsIdentity | None], dial: Callable[..., grpc.aio.Channel]) -> None:
        self._own = own
        self._dial = dial
        self._shown: TlsIdentity | None = None
        self._calls: dict[grpc.aio.Channel, set[Any]] = {}  # of each open channel, the newest last
        self._closing: set[asyncio.Task[None]] = set()

    def _newest(self) -> grpc.aio.Channel:
        if (own := self._own()) != self._shown and own is not None:
            self._shown = own
            self._calls[self._dial(_credentials(own))] = set()
            self._close_idle()
        return next(reversed(self._calls))

    def _close_idle(self) -> None:
        for channel in [channel for channel, calls in list(self._calls.items())[:-1] if not calls]:
            del self._calls[channel]
            self._closing.add(task := asyncio.get_running_loop().create_task(channel.close()))
            task.add_done_callback(self._closing.discard)

    def __getattr__(self, name: str) -> Any:
        if name not in _SHAPES:
            return getattr(self._newest(), name)
        return lambda *args, **kwargs: partial(self._begin, name, args, kwargs)

    def _begin(self, shape: str, args: Any, kwargs: Any, *asked: Any, **how: Any) -> Any:
        calls, call = self._calls[channel := self._newest()], getattr(channel, shape)(*args, **kwargs)(*asked, **how)
        calls.add(call)
        call.add_done_callback(calls.discard)
        call.add_done_callback(lambda _call: self._close_idle())
        return call

    async def close(self, grace: float | None = None) -> None:
        await asyncio.gather(*(channel.close(grace) for channel in self._calls), *self._closing)

    async def __aenter__(self) -> "_RenewedChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def raise_if_cancelled() -> None:
    """For loops that catch what a call raises: one that is cancelled as its peer goes may raise the peer's error, and
    the cancellation would be lost with it. Raises CancelledError.
    """
    if (task := asyncio.current_task()) is not None and task.cancelling():
        raise asyncio.CancelledError


MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # longer payloads belong in the ledger or on the volume

_RETRIES = {
    "maxAttempts": 4, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}  # fmt: skip
_SERVICE_CONFIG = json.dumps(
    {"methodConfig": [{"name": [{}], "retryPolicy": _RETRIES}], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}
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

SERVER_TLS = [("grpc.max_connection_age_ms", 3_600_000)]
"""Added with TLS: no open connection is checked again, so each ends within the hour, once its calls ended."""
