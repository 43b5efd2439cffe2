"""Times as Kubernetes writes them, to the second, and as the operator counts them: seconds since 1970. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


@lru_cache(maxsize=4096)  # the same few times are read at every look
def parse(text: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None for none, or for what is no time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def render(seconds: float) -> str:
    """RFC 3339, rounded down to the second."""
    return _render(int(seconds))


@lru_cache(maxsize=4096)
def _render(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def words(seconds: float) -> str:
    """A duration for people: `45 s`, `12 min`, `3 h 5 min`."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
