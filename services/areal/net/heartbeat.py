"""Failure detection from heartbeats. Pure: it is told when beats arrive and answers what to believe.

A beat proves that the peer's own loop runs, which a TCP connection or an HTTP/2 ping does not: those are answered by
the kernel or by gRPC's C core while the program hangs. `progress` tells a busy peer from a frozen one.
"""

import random
from collections.abc import Callable
from enum import StrEnum

PERIOD_S = 0.5  # with _DEAD_MISSES = 5 a dead peer is known in 2.5 s, under the promised 3 s
_SUSPECT_MISSES, _DEAD_MISSES = 2, 5


class Health(StrEnum):
    """What to believe about a peer."""

    LIVE = "live"
    SUSPECT = "suspect"  # give it no new work
    DEAD = "dead"  # give its work to others


class Detector:
    """Counts missed beats of one peer. `now` is a monotonic clock in seconds, always the caller's."""

    def __init__(self, now: float) -> None:
        self._last_beat = now
        self._progress = 0
        self._last_progress = now

    def beat(self, now: float, progress: int) -> None:
        """A beat arrived. Progress that differs, also downwards after a restart, is progress."""
        self._last_beat = max(self._last_beat, now)
        if progress != self._progress:
            self._progress = progress
            self._last_progress = now

    def health(self, now: float) -> Health:
        """Judge by whole missed periods since the last beat."""
        if (missed := int((now - self._last_beat) / PERIOD_S)) >= _DEAD_MISSES:
            return Health.DEAD
        return Health.SUSPECT if missed >= _SUSPECT_MISSES else Health.LIVE

    def age_s(self, now: float) -> float:
        """Seconds since the last beat."""
        return now - self._last_beat

    def frozen_s(self, now: float) -> float:
        """Seconds since progress last changed. Only the caller knows whether there was work to do."""
        return now - self._last_progress


# ---- Exponential back-off with jitter. Pure: it answers how long to wait, its caller sleeps


def doubled(first_s: float, longest_s: float, failures: int) -> float:
    """The whole delay after so many failures before this one."""
    return min(longest_s, first_s * 2.0 ** min(failures, 60))


class Backoff:
    """The delays between tries: doubled from `first_s` to `longest_s`, each drawn from its upper half."""

    def __init__(
        self, first_s: float, longest_s: float, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._first_s = first_s
        self.longest_s = longest_s
        self._uniform = uniform
        self.failures = 0

    def failed(self) -> float:
        """One more failure: how long to wait now."""
        self.failures += 1
        whole = doubled(self._first_s, self.longest_s, self.failures - 1)
        return self._uniform(whole / 2, whole)

    def succeeded(self) -> None:
        """Start over."""
        self.failures = 0
