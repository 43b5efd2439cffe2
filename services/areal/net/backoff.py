"""Exponential back-off with jitter. Pure: it answers how long to wait, its caller sleeps."""

import random
from collections.abc import Callable


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
