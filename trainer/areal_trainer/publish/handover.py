"""Tensors of a version that other ranks hold: rank 0 asks for them one by one, and their owners hand them over.

Works on the publishing thread, over its own process group. A rank answers until rank 0 dismisses it; a rank that is
gone is an error, as everywhere between ranks of a trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from areal.errors import InfraError
from areal.weights.manifest import Manifest
from torch import Tensor

_ENOUGH = 0  # a name's length that dismisses


class OwnersTensors(Mapping[str, Tensor]):
    """All tensors of a version by name, at rank 0: its own, and others' bytes, uint8 [bytes], asked for when read."""

    def __init__(self, group: Any, manifest: Manifest, owners: Mapping[str, int], own: Mapping[str, Tensor]) -> None:
        """`owners` says which rank holds a tensor; `own` are this rank's."""
        self._group = group
        self._manifest = manifest
        self._owners = owners
        self._own = own

    def __getitem__(self, name: str) -> Tensor:
        if name in self._own:
            return self._own[name]
        owner = self._owners[name]
        flat = torch.empty(self._manifest.tensors[name].length, dtype=torch.uint8)
        try:
            _say(self._group, owner, name.encode())
            dist.recv(flat, owner, group=self._group)
        except RuntimeError as error:
            raise _gone(f"rank {owner} did not hand over {name}: {error}") from error
        return flat

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def __len__(self) -> int:
        return len(self._owners)


def hand_over(group: Any, tensors: Mapping[str, Tensor]) -> None:
    """Give rank 0 what it asks for of this rank's tensors, until it dismisses this rank."""
    try:
        while name := _heard(group):
            dist.send(tensors[name.decode()].reshape(-1).view(torch.uint8), 0, group=group)
    except RuntimeError as error:
        raise _gone(f"rank 0 asked for no more tensors of the version: {error}") from error


def dismiss(group: Any, ranks: Iterable[int]) -> None:
    """Rank 0 asks these ranks for nothing more."""
    for rank in ranks:
        try:
            _say(group, rank, b"")
        except RuntimeError as error:
            raise _gone(f"rank {rank} could not be dismissed: {error}") from error


def _say(group: Any, rank: int, name: bytes) -> None:
    dist.send(torch.tensor([len(name)]), rank, group=group)
    if len(name) != _ENOUGH:
        dist.send(torch.frombuffer(bytearray(name), dtype=torch.uint8), rank, group=group)


def _heard(group: Any) -> bytes:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, 0, group=group)
    name = torch.zeros(int(size), dtype=torch.uint8)
    if int(size) != _ENOUGH:
        dist.recv(name, 0, group=group)
    return name.numpy().tobytes()


def _gone(message: str) -> InfraError:
    return InfraError(message, fix="look at why a rank of the trainer ended; a restart publishes the version again")
