"""Tokens of visitors who have logged in, in this process' memory alone: what they may see is asked with their own."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from areal_view.pages.login import SESSION_S

MOST = 1_000  # beyond them the oldest must log in again


class Sessions:
    """Tickets that stand for a token, for an hour. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._held: dict[str, tuple[str, float]] = {}  # in order of their ends
        self._lock = threading.Lock()

    def give(self, token: str) -> str:
        """A new ticket for this token."""
        ticket = secrets.token_urlsafe(32)
        with self._lock:
            for one in [one for one, (_, until) in self._held.items() if until <= self._clock()]:
                del self._held[one]
            if len(self._held) >= MOST:
                del self._held[next(iter(self._held))]
            self._held[ticket] = (token, self._clock() + SESSION_S)
        return ticket

    def holds(self, cookie: str) -> bool:
        """Whether it was given, and is not over."""
        return self.token(cookie) is not None

    def token(self, cookie: str) -> str | None:
        """The token that a ticket stands for; None when it is over, or was never given."""
        with self._lock:
            token, until = self._held.get(cookie, ("", 0.0))
        return token if self._clock() < until else None

    def end(self, cookie: str) -> None:
        """Forget it."""
        with self._lock:
            self._held.pop(cookie, None)
