"""Host copies of the tensors that a rank publishes: two, used in turn (a double buffer).

One is written, or was and is the base of the next delta, while the other is filled. Pinned where there is an
accelerator, so that copying off the device runs at the bus's speed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Snapshots:
    """Two copies of one rank's tensors. The second exists from the second publication on."""

    def __init__(self) -> None:
        self._now: dict[str, Tensor] = {}
        self._before: dict[str, Tensor] = {}

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy tensors from the device; on return they may change. What was current is the copy before."""
        self._now, self._before = self._before, self._now
        device = None
        for name, tensor in tensors:
            if tensor.device.type == "cuda":
                device = tensor.device
            held = self._now.get(name)
            if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
                held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device is not None)
                self._now[name] = held
            held.copy_(tensor, non_blocking=device is not None)
        if device is not None:
            torch.cuda.current_stream(device).synchronize()

    @property
    def current(self) -> dict[str, Tensor]:
        """The newest copy, by name."""
        return self._now

    @property
    def before(self) -> dict[str, Tensor]:
        """The copy before it, by name; empty at first."""
        return self._before
