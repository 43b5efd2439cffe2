"""For how long an engine has owed a token. Pure.

An engine that loads for minutes, or waits for minutes with nothing to do, makes no token and owes none: time counts
from its last token or from the moment it began to owe one, whichever was later.
"""

from __future__ import annotations


class OwedToken:
    """Asked every second or so."""

    def __init__(self) -> None:
        self._since: float | None = None

    def seconds(self, *, owes: bool, quiet_s: float, now: float) -> float:
        """How long a token has been owed.

        Args:
            owes: whether requests are with the engine and nothing keeps it from them.
            quiet_s: since its last token.
        """
        if not owes:
            self._since = None
            return 0.0
        if self._since is None:
            self._since = now
        return min(quiet_s, now - self._since)
