"""Slabs of host memory: copies of a rank's tensors by name, all views of one allocation that is used again.

Pinned where there is an accelerator, so that copying off the device runs at the bus's speed. A slab is registered with
CUDA as it lies: torch's own allocator rounds every pinned tensor up to a power of two, twice what a 7B model needs.
"""

import logging
import math
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from areal.errors import InfraError
from areal.spec.quantity import show_bytes
from torch import Tensor

_log = logging.getLogger(__name__)
_ALIGNED = 512  # bytes: what kernels and copies like best


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor that isn't there yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.elements * self.dtype.itemsize


def specs_of(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, TensorSpec]:
    """Specs of tensors that are there, by name."""
    return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors}


Place = tuple[int, int, int, int]
"""Bytes that another process of this user on this machine can map: process, its descriptor, start, length."""


class HostSlab:
    """Host memory for tensors of these specs. `views` shares it."""

    def __init__(
        self, purpose: str, specs: Mapping[str, TensorSpec], device: torch.device, *, shared: bool = False
    ) -> None:
        """`shared`: other processes may map it, by `places`. Raises InfraError when it can't be pinned for `device`."""
        starts, total = {}, 0
        for name, spec in specs.items():
            starts[name], total = total, total + -(-spec.size // _ALIGNED) * _ALIGNED
        self.places: dict[str, Place] = {}
        if shared and total:
            descriptor = os.memfd_create(purpose)  # nothing of it outlives the processes that have it
            os.ftruncate(descriptor, total)
            self._memory = mapped(descriptor)
            weakref.finalize(self._memory.untyped_storage(), os.close, descriptor)
            self.places = {name: (os.getpid(), descriptor, starts[name], spec.size) for name, spec in specs.items()}
        else:
            self._memory = torch.empty(total, dtype=torch.uint8)
        self.pinned = device.type == "cuda" and total > 0
        if self.pinned:
            pin(self._memory, purpose)
        self.views = {
            name: self._memory[starts[name] : starts[name] + spec.size].view(spec.dtype).view(spec.shape)
            for name, spec in specs.items()
        }

    @property
    def size(self) -> int:
        """Bytes."""
        return self._memory.numel()

    def touch(self) -> "HostSlab":
        """Write every page: the first use would take several times as long."""
        self._memory.zero_()
        return self

    def fill(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy tensors of the specs' names; on return they may change."""
        device = None
        for name, tensor in tensors:
            if tensor.device.type == "cuda":
                device = tensor.device
            self.views[name].copy_(tensor, non_blocking=device is not None)
        if device is not None:
            torch.cuda.current_stream(device).synchronize()


def mapped(descriptor: int) -> Tensor:
    """All bytes of a file in memory, uint8 [bytes]; what is written to them, others see."""
    return torch.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size), dtype=torch.uint8)


def pin(memory: Tensor, purpose: str) -> None:
    """Page-lock memory until nobody shares it."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.data_ptr()
    if code := int(runtime.cudaHostRegister(address, memory.numel(), 0)):
        raise InfraError(
            f"{show_bytes(memory.numel())} of host memory for {purpose} can't be pinned: CUDA error {code}",
            fix="give the trainer the memory that `areal check` plans, or raise the limit of locked memory (ulimit -l)",
        )
    weakref.finalize(memory.untyped_storage(), runtime.cudaHostUnregister, address)  # views may outlive the slab
    _log.info("%s of pinned host memory for %s", show_bytes(memory.numel()), purpose)
