"""Shared-memory directory of a version: places of its tensors in the ranks' copies, for senders of rank 0's machine.

Ranks of one machine tell where; what ranks of other machines hold is handed over, and lies at rank 0 then. Works on the
publishing thread, over its own process group. A rank answers, and keeps its tensors as they are, until rank 0 dismisses
it; a rank that is gone is an error, as everywhere between ranks of a trainer.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from areal.errors import InfraError
from areal.weights.manifest import Manifest
from torch import Tensor

from areal_trainer.engine.host_copy import HostSlab, Place, TensorSpec

_ENOUGH = b""  # dismisses
_WHERE = b"?"  # is no tensor's name


class VersionPlaces:
    """At rank 0: the places of all tensors of a version, uint8 [bytes] each. Owns the memory for other machines'."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._others: HostSlab | None = None

    def of(
        self, group: Any, manifest: Manifest, owners: Mapping[str, int], own: Mapping[str, Place]
    ) -> dict[str, Place]:
        """`owners` says which rank holds a tensor; `own` are this rank's. `group` is None with one rank."""
        places, far = dict(own), dict[str, int]()
        for owner in sorted(set(owners.values()) - {0}):
            told = json.loads(_asked(group, owner, _WHERE))
            if told["machine"] == _machine():
                places |= {name: tuple(place) for name, place in told["places"].items()}
            else:
                far |= {name: owner for name, rank in owners.items() if rank == owner}
        if not far:
            return places
        if self._others is None:
            specs = {name: TensorSpec((manifest.tensors[name].length,), torch.uint8) for name in far}
            self._others = HostSlab("other machines' weights", specs, self._device, shared=True)
        self._others.fill(_received(group, far, self._others.views))
        return places | self._others.places


def hand_over(group: Any, tensors: Mapping[str, Tensor], places: Mapping[str, Place]) -> None:
    """Answer what rank 0 asks of this rank's tensors, until it dismisses this rank."""
    where = json.dumps({"machine": _machine(), "places": places}).encode()
    try:
        while name := _heard(group, 0):
            if name == _WHERE:
                _say(group, 0, where)
            else:
                dist.send(tensors[name.decode()].reshape(-1).view(torch.uint8), 0, group=group)
    except RuntimeError as error:
        raise _gone(f"rank 0 asked for no more tensors of the version: {error}") from error


def dismiss(group: Any, ranks: Iterable[int]) -> None:
    """Rank 0 asks these ranks for nothing more."""
    for rank in ranks:
        try:
            _say(group, rank, _ENOUGH)
        except RuntimeError as error:
            raise _gone(f"rank {rank} could not be dismissed: {error}") from error


def _received(group: Any, far: Mapping[str, int], room: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, owner in far.items():
        flat = torch.empty_like(room[name])
        try:
            _say(group, owner, name.encode())
            dist.recv(flat, owner, group=group)
        except RuntimeError as error:
            raise _gone(f"rank {owner} did not hand over {name}: {error}") from error
        yield name, flat


def _machine() -> str:
    """Torchrun's number of this machine."""
    return os.environ.get("GROUP_RANK", "0")


def _asked(group: Any, rank: int, question: bytes) -> bytes:
    try:
        _say(group, rank, question)
        return _heard(group, rank)
    except RuntimeError as error:
        raise _gone(f"rank {rank} does not say where its tensors are: {error}") from error


def _say(group: Any, rank: int, said: bytes) -> None:
    dist.send(torch.tensor([len(said)]), rank, group=group)
    if said:
        dist.send(torch.frombuffer(bytearray(said), dtype=torch.uint8), rank, group=group)


def _heard(group: Any, rank: int) -> bytes:
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, rank, group=group)
    said = torch.zeros(int(size), dtype=torch.uint8)
    if int(size):
        dist.recv(said, rank, group=group)
    return said.numpy().tobytes()


def _gone(message: str) -> InfraError:
    return InfraError(message, fix="look at why a rank of the trainer ended; a restart publishes the version again")
