"""CPU offload: a frozen model is on the device while it is asked; all that a trainer holds, while it has the cards.

Owns the copies in host memory, pinned where there is an accelerator; without one they are mapped from an unlinked file,
which the operating system may write back. Never changes a number: what is copied back are the same bytes.
"""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, UntypedStorage

from areal_trainer.engine.host_copy import HostSlab, TensorSpec
from areal_trainer.engine.optimizer import local


class OffloadedParameters:
    """Storages of tensors that are empty but inside `on_device`, or from `enter` to `leave`."""

    def __init__(self, parameters: Iterable[Tensor], purpose: str = "a frozen model") -> None:
        """Copies every tensor to host memory, and frees it on its device. Inside `on_device` none may be changed."""
        storages = (local(parameter.detach()).untyped_storage() for parameter in parameters)
        shared = {storage.data_ptr(): storage for storage in storages if storage.size()}  # a rank may own none of one
        self._held = _host_memory(list(shared.values()), purpose)
        self.leave()

    @property
    def size(self) -> int:
        """Bytes in host memory."""
        return sum(held.numel() for _, held in self._held)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """The parameters are there; at the end their memory is free again."""
        self.enter()
        try:
            yield
        finally:
            self._free()

    def enter(self) -> None:
        """Back to the device."""
        for storage, held in self._held:
            storage.resize_(held.numel())
            _bytes_of(storage).copy_(held, non_blocking=True)  # of the stream that the model is asked on

    def leave(self) -> None:
        """Copy all to host memory, as it is now, and free it on the device."""
        for storage, held in self._held:
            held.copy_(_bytes_of(storage))
        self._free()

    def _free(self) -> None:
        for storage, _ in self._held:
            storage.resize_(0)


def _bytes_of(storage: UntypedStorage) -> Tensor:
    """The bytes of a storage as a tensor that shares them."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _host_memory(storages: list[UntypedStorage], purpose: str) -> list[tuple[UntypedStorage, Tensor]]:
    """Each storage with its room in host memory."""
    device = storages[0].device if storages else torch.device("cpu")
    if device.type != "cuda":
        return [(storage, _of_a_file(storage.size())) for storage in storages]
    specs = {str(number): TensorSpec((storage.size(),), torch.uint8) for number, storage in enumerate(storages)}
    return list(zip(storages, HostSlab(purpose, specs, device).views.values(), strict=True))


def _of_a_file(size: int) -> Tensor:
    with tempfile.NamedTemporaryFile(prefix="areal-offload-") as file:
        return torch.from_file(file.name, shared=True, size=size, dtype=torch.uint8)
