"""Connection settings that both Redis clients share.

Owns the settings of the connection. redis-py's own retries are off: `faults` decides about trying again, and counts the
time.
"""

from __future__ import annotations

from typing import Any

from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.maint_notifications import MaintNotificationsConfig

from areal.errors import ConfigError

CONNECT_TIMEOUT_S = 2.0
REPLY_TIMEOUT_S = 10.0
"""A recover that frees a million groups takes 2 s; a reply later than this is a lost one."""


def settings(address: str, username: str | None, password: str | None, retry: Any) -> dict[str, Any]:
    """Keyword arguments of `redis.Redis` and `redis.asyncio.Redis` for `address`: "host:port", or a URL.

    Raises ConfigError for an invalid URL.
    """
    return {
        **_place(address, username, password),
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": REPLY_TIMEOUT_S,
        "socket_keepalive": True,
        "retry": retry,
        "protocol": 2,
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def shown(address: str) -> str:
    """The address without a login, for messages."""
    return address.rpartition("@")[2].partition("?")[0] if "://" in address else address


def _place(address: str, username: str | None, password: str | None) -> dict[str, Any]:
    if "://" not in address:
        host, _, port = address.rpartition(":")
        return {"host": host.strip("[]"), "port": int(port), "username": username, "password": password}
    try:
        place: dict[str, Any] = parse_url(address)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigError(
            f"the replay store's URL is none: {error}",
            fix="write redis://user:password@host:port, or rediss:// for TLS",
        ) from None
    if "host" not in place:
        raise ConfigError("the replay store's URL names no host", fix="write redis://user:password@host:port")
    secure = place.pop("connection_class", None) is not None
    return {**place, "ssl": True} if secure else place


def no_retry(kind: Any) -> Any:
    """A retry policy, of redis-py's sync or async `Retry` class, that never tries again."""
    return kind(NoBackoff(), 0)
