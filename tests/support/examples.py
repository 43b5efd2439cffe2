"""Numbers of examples of property tests, scaled by Hypothesis' profile."""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100  # Hypothesis' own number, to which the counts in the tests refer


def examples(count: int) -> int:
    """How many examples a test draws that draws `count` in `make nightly`; never fewer than five."""
    return max(5, count * settings().max_examples // _USUAL)
