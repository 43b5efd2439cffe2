"""Failure detection from heartbeats. Pure: it is told when beats arrive and answers what to believe.

A beat proves that the peer's own loop runs, which a TCP connection or an HTTP/2 ping does not: those are answered by
the kernel or by gRPC's C core while the program hangs. `progress` tells a busy peer from a frozen one.
"""

from enum import StrEnum

PERIOD_S = 0.5  # with dead_misses = 5 a dead peer is known in 2.5 s, under the promised 3 s


class Health(StrEnum):
    """What to believe about a peer."""

    LIVE = "live"
    SUSPECT = "suspect"  # give it no new work
    DEAD = "dead"  # give its work to others


class Detector:
    """Counts missed beats of one peer. `now` is a monotonic clock in seconds, always the caller's."""

    def __init__(
        self, now: float, *, period_s: float = PERIOD_S, suspect_misses: int = 2, dead_misses: int = 5
    ) -> None:
        self._period_s = period_s
        self._suspect_misses = suspect_misses
        self._dead_misses = dead_misses
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
        if (missed := int((now - self._last_beat) / self._period_s)) >= self._dead_misses:
            return Health.DEAD
        return Health.SUSPECT if missed >= self._suspect_misses else Health.LIVE

    def age_s(self, now: float) -> float:
        """Seconds since the last beat."""
        return now - self._last_beat

    def frozen_s(self, now: float) -> float:
        """Seconds since progress last changed. Only the caller knows whether there was work to do."""
        return now - self._last_progress
