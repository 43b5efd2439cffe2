"""Host copies of the tensors that a rank publishes: two, used in turn (a double buffer).

One is written, or was and is the base of the next delta, while the other is filled.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from areal_trainer.engine.host_copy import copy_to_host


class Snapshots:
    """Two copies of one rank's tensors. The second exists from the second publication on."""

    def __init__(self) -> None:
        self._now: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy tensors from the device; on return they may change. What was current is the copy before."""
        self._now, self._before = self._before, self._now
        copy_to_host(self._now, tensors)

    @property
    def current(self) -> dict[str, Tensor]:
        """The newest copy, by name."""
        return self._now

    @property
    def before(self) -> dict[str, Tensor]:
        """The copy before it, by name; empty at first."""
        return self._before
