"""Durations and rates for people."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """`42s`, `3m07s`, `2h05m`."""
    if seconds is None:
        return "—"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def rate(value: float) -> str:
    """Tokens per second for people."""
    return f"{value / 1000:.1f}k tok/s" if value >= 1000 else f"{value:.0f} tok/s"
