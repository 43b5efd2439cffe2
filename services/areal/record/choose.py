"""Sampling of the recording: which prompt groups are kept, within a budget of bytes a step. Pure.

Whole groups are chosen by a hash of their index, so that workers and trainer agree without talking.
"""

from __future__ import annotations

from collections import OrderedDict

_MIX = 0x9E3779B97F4A7C15  # 2⁶⁴/φ: neighbours fall far apart
_PER_TOKEN = 24  # bytes that a token takes in memory with its text, about: for budget and queue
_PER_SAMPLE = 512
_STEPS_OPEN = 256  # steps whose bytes are remembered; more are never in work at once


def in_share(group: int, share: float) -> bool:
    """Whether a group belongs to the part `share` (0 to 1) of all groups."""
    return ((group + 1) * _MIX % 2**64) / 2**64 < share


def sample_size(tokens: int) -> int:
    """About how many bytes the record of a sample of so many tokens takes."""
    return _PER_SAMPLE + _PER_TOKEN * tokens


class StepBudget:
    """Bytes kept by step. A record that would pass the budget is not kept; the next step begins anew."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._spent: OrderedDict[int, int] = OrderedDict()

    def take(self, step: int, size: int) -> bool:
        """Whether a record of about `size` bytes of `step` is still within the budget; it is then counted."""
        spent = self._spent.get(step, 0)
        if spent + size > self._budget:
            return False
        self._spent[step] = spent + size
        while len(self._spent) > _STEPS_OPEN:
            self._spent.popitem(last=False)
        return True
