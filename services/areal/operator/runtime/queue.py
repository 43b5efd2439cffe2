"""Keys that wait for a worker: each once, each with one worker at most, the failing ones less and less often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from areal.operator.runtime.resources import Key


class Queue:
    """A deduplicating, delaying queue of keys."""

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Have `key` worked on in `after_s` seconds or earlier. While it is being worked on, it runs again after."""
        raise NotImplementedError

    async def run(self, worker: Callable[[Key], Awaitable[float | None]], workers: int = 4) -> None:
        """Work until cancelled. The worker returns seconds until it wants the key again, or None.

        An exception is logged and the key comes back after its own back-off: 1 s, doubled up to 5 minutes, until the
        worker returns.
        """
        raise NotImplementedError
