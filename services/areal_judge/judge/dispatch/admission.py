"""Admission control: bounds of the queue, its drain rate, and the memory budget of runs.

Pure: told the time. A bound that is reached is an answer with a hint, never a longer queue.
"""

import math
from dataclasses import dataclass

_RATE_OVER_S = 10.0  # the drain rate is a mean over about so long
_ROOM_SHARE = 0.1  # who was turned away comes back when this share of the queue has drained
_UNKNOWN_S = 1.0  # hint before anything has finished
_LEAST_S = 0.05
_MOST_S = 30.0

MEMORY_SHARE = 0.8  # of the pod's; the rest is the service, its zygotes and the page cache


@dataclass(frozen=True)
class Bounds:
    """What may wait at once."""

    items: int = 4096  # of all callers
    code_bytes: int = 64 << 20

    def exceeded(self, items: int, code_bytes: int) -> str:
        """Which bound such a queue breaks, in words; empty when none."""
        if items > self.items:
            return f"{self.items} requests wait already"
        if code_bytes > self.code_bytes:
            return f"requests of {self.code_bytes >> 20} MB wait already"
        return ""


class DrainRate:
    """How many requests a second finish."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._at = now
        self._sum = 0.0  # of finished requests, each fading over _RATE_OVER_S

    def finished(self, now: float) -> None:
        """One more."""
        self._sum = self._faded(now) + 1.0
        self._at = now

    def per_s(self, now: float) -> float:
        """Requests a second; 0 when none finished lately."""
        seen_s = max(now - self._began, 1e-3)
        return self._faded(now) / (_RATE_OVER_S * -math.expm1(-seen_s / _RATE_OVER_S))

    def retry_after_s(self, waiting: int, now: float) -> float:
        """When there will be room again, with `waiting` requests in front."""
        rate = self.per_s(now)
        if rate < 1e-3:
            return _UNKNOWN_S
        return min(_MOST_S, max(_LEAST_S, waiting * _ROOM_SHARE / rate))

    def _faded(self, now: float) -> float:
        return self._sum * math.exp(-max(0.0, now - self._at) / _RATE_OVER_S)


class MemoryBudget:
    """Memory that the limits of all runs together may reach."""

    def __init__(self, pod_bytes: int, share: float = MEMORY_SHARE) -> None:
        self.pod_bytes = pod_bytes
        self.budget_bytes = int(pod_bytes * share)
        self.held_bytes = 0

    def possible(self, need_bytes: int) -> bool:
        """Whether such a run could ever start."""
        return need_bytes <= self.pod_bytes

    def fits(self, need_bytes: int) -> bool:
        """Whether it may start now. One alone may have more than the budget, up to all of the pod."""
        return self.held_bytes + need_bytes <= self.budget_bytes or not self.held_bytes

    def take(self, need_bytes: int) -> None:
        self.held_bytes += need_bytes

    def give(self, had_bytes: int) -> None:
        self.held_bytes -= had_bytes
