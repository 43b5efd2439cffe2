"""Copies of tensors in host memory, by name, into buffers that are used again.

Pinned where there is an accelerator, so that copying off the device runs at the bus's speed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def copy_to_host(held: dict[str, Tensor], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Fill `held`, making what is missing or of another shape or dtype; on return the tensors may change."""
    device = None
    for name, tensor in tensors:
        if tensor.device.type == "cuda":
            device = tensor.device
        buffer = held.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device is not None)
            held[name] = buffer
        buffer.copy_(tensor, non_blocking=device is not None)
    if device is not None:
        torch.cuda.current_stream(device).synchronize()
