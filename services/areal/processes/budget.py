"""Restart budget of a child with exponential back-off. Pure.

A budget is a number of restarts in a sliding window: a role that dies once an hour is restarted without end, one that
dies at every start stops the run soon. The wait doubles with each restart in the window and is short at first: a warm
role should be back within seconds. A restart that somebody asked for uses nothing.
"""

from collections import Counter, deque
from dataclasses import dataclass

from areal.net.backoff import doubled


@dataclass(frozen=True)
class BudgetPolicy:
    """Limits of one child."""

    max_restarts: int = 5
    window_s: float = 600.0
    first_wait_s: float = 0.1
    max_wait_s: float = 5.0


_SHOWN = 80  # characters of a reason: an error's words may be long


@dataclass(frozen=True)
class RestartGrant:
    """The child may start again after `wait_s`."""

    wait_s: float


@dataclass(frozen=True)
class RestartsExhausted:
    """No restart is left; `reason` says which were used for what."""

    reason: str


class Budget:
    """Restarts of one child. Told the time, never asks for it."""

    def __init__(self, policy: BudgetPolicy) -> None:
        self._policy = policy
        self._used: deque[tuple[float, str]] = deque()

    def ask(self, now: float, reason: str, *, counted: bool = True) -> RestartGrant | RestartsExhausted:
        """Ask for one restart; a granted one is used if it is `counted`."""
        self._forget(now)
        policy = self._policy
        if counted and len(self._used) >= policy.max_restarts:
            used = f"all {policy.max_restarts} restarts in {policy.window_s:g} s are used ({self._reasons(reason)})"
            return RestartsExhausted(f"{reason}; {used}")
        wait = doubled(policy.first_wait_s, policy.max_wait_s, len(self._used))
        if counted:
            self._used.append((now, reason))
        return RestartGrant(wait)

    def warning(self, now: float) -> str:
        """Warning of what is used and for what, once that is half; empty before."""
        self._forget(now)
        policy, used = self._policy, len(self._used)
        if not used or 2 * used < policy.max_restarts:
            return ""
        return f"{used} of {policy.max_restarts} restarts in {policy.window_s:g} s are used ({self._reasons()})"

    def _forget(self, now: float) -> None:
        while self._used and self._used[0][0] <= now - self._policy.window_s:
            self._used.popleft()

    def _reasons(self, newest: str = "") -> str:
        used = Counter(why if len(why) <= _SHOWN else f"{why[:_SHOWN]}…" for _, why in self._used)
        if newest and self._used and all(why == newest for _, why in self._used):
            return "each for that"
        return "; ".join(f"{count}× {why}" for why, count in used.items()) or "none was allowed"
