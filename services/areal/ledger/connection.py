"""Connections to Redis as both clients make them: settings, retries, and whose fault a failure is.

redis-py's own retries are off: its exceptions are classified here as worth a retry or not, and `Patience` paces the
retries and counts the time. No IO, no sleep.
"""

from collections.abc import Callable
from typing import Any

from redis import exceptions as redis_errors
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.maint_notifications import MaintNotificationsConfig

from areal import tls
from areal.errors import ArealError, BugError, Cause, ConfigError, InfraError

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
    place: dict[str, Any]
    if "://" not in address:
        host, _, port = address.rpartition(":")
        place = {"host": host.strip("[]"), "port": int(port), "username": username, "password": password}
        if (own := tls.tls_dir()) is not None:
            files = {"ssl_certfile": tls.CERTIFICATE_FILE, "ssl_keyfile": tls.KEY_FILE, "ssl_ca_certs": tls.CA_FILE}
            place |= {"ssl": True, **{name: str(own / file) for name, file in files.items()}}
        return place
    try:
        place = parse_url(address)  # type: ignore[no-untyped-call]
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


RETRY_FOR_S = 30.0
"""Redis with 3 GB of retained samples is back within 10 s; three times that is no restart any more."""

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5

PASSING = (
    redis_errors.ConnectionError, redis_errors.TimeoutError, redis_errors.BusyLoadingError, redis_errors.ReadOnlyError,
    redis_errors.TryAgainError, OSError,
)  # fmt: skip
"""Failures that a restart or a failover explains. Every operation of the ledger may be repeated."""


class Patience:
    """How long one call may be repeated, and how long to pause before the next try."""

    def __init__(self, address: str, clock: Callable[[], float], retry_for_s: float = RETRY_FOR_S) -> None:
        self._address = address
        self._clock = clock
        self._retry_for_s = retry_for_s
        self._until = clock() + retry_for_s
        self._pause_s = FIRST_PAUSE_S

    def pause_s(self, error: Exception) -> float:
        """Seconds to wait before the next try. Raises the typed error when another try won't help, or is too late."""
        if not isinstance(error, PASSING) or isinstance(error, redis_errors.AuthenticationError):
            raise typed(error, self._address) from error
        if self._clock() + self._pause_s > self._until:
            raise InfraError(
                f"the replay store at {self._address} did not answer for {self._retry_for_s:.0f} s ({error})",
                fix="see the log of the role redis; when it runs again, this role goes on after a restart",
            ) from error
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause


def typed(error: Exception, address: str) -> ArealError:
    """A failure that trying again doesn't cure, as an error with an owner."""
    if isinstance(error, redis_errors.OutOfMemoryError):
        return InfraError(
            f"the replay store at {address} is full",
            fix="raise replay.budgetBytes, or lower checkpoint.intervalSteps so that space is freed sooner",
            cause=Cause.STORE_FULL,
        )
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.NoPermissionError):
        return ConfigError(
            f"the replay store at {address} refuses this login: {error}",
            fix="give the role the login and password that the replay store was started with",
        )
    return BugError(f"the replay store at {address} refused a call: {error}")
