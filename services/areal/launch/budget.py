"""How often a child may be restarted, and how long to wait before it. Pure.

A budget is a number of restarts in a sliding window: a role that dies once an hour lives for ever, one that dies at
every start stops the run soon. The wait doubles with each restart in the window and is short at first, because a warm
role should be back within seconds.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetPolicy:
    """Limits of one child."""

    max_restarts: int = 5
    window_s: float = 600.0
    first_wait_s: float = 0.1
    max_wait_s: float = 5.0


@dataclass(frozen=True)
class Granted:
    """The child may start again after `wait_s`."""

    wait_s: float


@dataclass(frozen=True)
class Exhausted:
    """No restart is left; `reason` says which were used for what."""

    reason: str


class Budget:
    """Restarts of one child. Told the time, never asks for it."""

    def __init__(self, policy: BudgetPolicy) -> None:
        self._policy = policy
        self._used: deque[tuple[float, str]] = deque()

    def ask(self, now: float, reason: str) -> Granted | Exhausted:
        """Ask for one restart; a granted one is used."""
        policy = self._policy
        while self._used and self._used[0][0] <= now - policy.window_s:
            self._used.popleft()
        if len(self._used) >= policy.max_restarts:
            used = Counter(why for _, why in self._used)
            earlier = "; ".join(f"{count}× {why}" for why, count in used.items()) or "none was allowed"
            return Exhausted(
                f"{reason}; all {policy.max_restarts} restarts in {policy.window_s:g} s are used ({earlier})"
            )
        wait = min(policy.first_wait_s * 2 ** len(self._used), policy.max_wait_s)
        self._used.append((now, reason))
        return Granted(wait)
