"""How both clients talk to Redis.

Owns the settings of the connection. redis-py's own retries are off: `faults` decides about trying again, and counts the
time.
"""

from __future__ import annotations

from typing import Any

from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

CONNECT_TIMEOUT_S = 2.0
REPLY_TIMEOUT_S = 10.0
"""A recover that frees a million groups takes 2 s; a reply later than this is a lost one."""


def settings(address: str, username: str | None, password: str | None, retry: Any) -> dict[str, Any]:
    """Keyword arguments of `redis.Redis` and `redis.asyncio.Redis` for `address` ("host:port")."""
    host, _, port = address.rpartition(":")
    return {
        "host": host.strip("[]"),
        "port": int(port),
        "username": username,
        "password": password,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": REPLY_TIMEOUT_S,
        "socket_keepalive": True,
        "retry": retry,
        "protocol": 2,
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }


def no_retry(kind: Any) -> Any:
    """A retry policy, of redis-py's sync or async `Retry` class, that never tries again."""
    return kind(NoBackoff(), 0)
