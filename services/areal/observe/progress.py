"""A role's progress: a counter that grows only when work is done, and what the role is doing now."""

import threading
import time
from collections.abc import Callable


class ProgressCounter:
    """Safe from any thread. `policy_id` and `doing` are plain words for `areal status` and the logs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.value = 0  # units of work done since this process started
        self._changed = clock()
        self.policy_id = ""
        self.doing = "starting"

    def advance(self, n: int = 1) -> None:
        """`n` more units of work are done."""
        if n:
            with self._lock:
                self.value += n
                self._changed = self._clock()

    def since_s(self, now: float | None = None) -> float:
        """Seconds since the last progress."""
        return (self._clock() if now is None else now) - self._changed
