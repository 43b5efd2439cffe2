"""Token bucket with priorities in front of the API server.

Owns who goes first when tokens are short: what changes the cluster before what only tells about it. Requests that the
server asked to hold back (`hold`) wait for everybody.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from enum import IntEnum
from itertools import count


class RequestPriority(IntEnum):
    """Order of service; the lower first."""

    WRITE = 0  # children: create, apply, delete
    READ = 1  # get and list
    STATUS = 2  # what people read; the next one replaces it anyway
    EVENT = 3


class TokenBucket:
    """Tokens at `qps` a second, `burst` at most. Pure."""

    def __init__(self, qps: float, burst: int, now: float) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Take a token if there is one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def give_back(self) -> None:
        """A token that was taken and not used."""
        self._tokens = min(self._burst, self._tokens + 1.0)

    def empty(self, now: float) -> None:
        """No token is left, as if they had all been taken."""
        self._fill(now)
        self._tokens = min(self._tokens, 0.0)

    def wait_s(self, now: float) -> float:
        """Seconds until a token is there."""
        self._fill(now)
        return max(0.0, (1.0 - self._tokens) / self._qps)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
            self._at = now


class Limiter:
    """Callers wait their turn: by priority, then in order of arrival."""

    def __init__(self, qps: float = 20.0, burst: int = 40, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bucket = TokenBucket(qps, burst, clock())
        self._waiters: list[tuple[RequestPriority, int, asyncio.Future[None]]] = []
        self._arrivals = count()
        self._held_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of callers that wait."""
        return sum(not waiter.done() for _priority, _arrival, waiter in self._waiters)

    async def turn(self, priority: RequestPriority) -> None:
        """Return when the caller may send one request."""
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (priority, next(self._arrivals), waiter))
        self._serve()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # served and cancelled at once: the next one gets the token
                self._bucket.give_back()
                self._serve()
            raise

    def hold(self, seconds: float) -> None:
        """Serve nobody for so long: the server said that it is busy."""
        self._held_until = max(self._held_until, self._clock() + seconds)

    def _serve(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        while self._waiters:
            if self._waiters[0][2].done():
                heapq.heappop(self._waiters)
                continue
            wait_s = max(self._held_until - now, 0.0)
            if wait_s <= 0.0 and self._bucket.take(now):
                heapq.heappop(self._waiters)[2].set_result(None)
                continue
            wait_s = max(wait_s, self._bucket.wait_s(now), 0.001)  # a timer may fire a hair early: never spin
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._serve)
            return
