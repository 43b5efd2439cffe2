"""Classification of Redis failures: worth a retry, or whose fault.

Owns the classification of redis-py's exceptions and the pacing of retries. Both clients ask it; it does no IO and never
sleeps.
"""

from __future__ import annotations

from collections.abc import Callable

from redis import exceptions as redis_errors

from areal.errors import ArealError, BugError, ConfigError, InfraError

RETRY_FOR_S = 30.0
"""Redis with 3 GB of retained samples is back within 10 s; three times that is no restart any more."""

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.5

PASSING = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.BusyLoadingError,
    redis_errors.ReadOnlyError,
    redis_errors.TryAgainError,
    OSError,
)
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
        )
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.NoPermissionError):
        return ConfigError(
            f"the replay store at {address} refuses this login: {error}",
            fix="give the role the login and password that the replay store was started with",
        )
    return BugError(f"the replay store at {address} refused a call: {error}")
