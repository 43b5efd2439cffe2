"""Receiver of weights by a process group: a rank of the trainer's broadcast, which collects buckets of a version.

Owns the groups that this engine has joined and the tensors received so far. They lie beside the weights in use, which
nothing here touches: generation goes on, and what was received is used only when all of it is there. Blocking calls
run on threads; a group that hangs holds one of them until its timeout.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import torch
import xxhash
from torch import Tensor

from areal.broadcast import ProcessGroup, join_group
from areal.errors import DataError, InfraError

TIMEOUT_S = 120.0  # of a rendezvous, and of one broadcast


class GroupReceiver:
    """Not for several updates at once: `begin` forgets what was received before."""

    def __init__(self) -> None:
        self._groups: dict[str, ProcessGroup] = {}
        self._received: dict[str, Tensor] = {}
        self._joining: set[str] = set()  # names; one that was given up meanwhile isn't there any more

    async def join(self, body: Mapping[str, Any]) -> None:
        """Become a rank of a group. Raises DataError for a body that describes none, InfraError when that fails."""
        try:
            name, backend = str(body["group_name"]), str(body.get("backend", "nccl"))
            place = (str(body["master_address"]), int(body["master_port"]))
            rank, size = int(body["rank_offset"]), int(body["world_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"init_weights_update_group needs {error}") from error
        if backend != "gloo":
            raise DataError(f"the embedded engine joins groups by gloo, not by {backend}")
        if name in self._groups:
            raise DataError(f"the group {name} is joined already", fix="give a new group another name")

        def work() -> ProcessGroup:
            return join_group(backend, *place, name=name, rank=rank, world_size=size, timeout_s=TIMEOUT_S)

        self._joining.add(name)
        try:
            group = await asyncio.get_running_loop().run_in_executor(None, work)
        except RuntimeError as error:
            self._joining.discard(name)
            raise InfraError(f"the group {name} was not joined: {error}") from error
        if name not in self._joining:
            group.give_up()
            raise InfraError(f"the group {name} was given up")
        self._joining.discard(name)
        self._groups[name] = group

    def leave(self, name: str) -> bool:
        """Give a group up, and what came by it; False when there is none of this name."""
        group = self._groups.pop(name, None)
        self._joining.discard(name)
        self._received = {}
        if group is not None:
            group.give_up()
        return group is not None

    def begin(self) -> None:
        """An update begins."""
        self._received = {}

    async def receive(self, body: Mapping[str, Any]) -> None:
        """Receive one bucket. Raises DataError when it isn't what was announced, InfraError when nothing comes."""
        name = str(body.get("group_name"))
        group = self._groups.get(name)
        if group is None:
            raise DataError(f"there is no group {name}", fix="call /init_weights_update_group first")
        if body.get("load_format") != "flattened_bucket":
            raise DataError("the embedded engine takes flattened buckets only", fix="set load_format: flattened_bucket")
        pieces = _pieces(body)
        room = torch.empty(sum(_bytes(dtype, shape) for _, dtype, shape, _ in pieces), dtype=torch.uint8)

        def work() -> dict[str, Tensor]:
            group.broadcast(room).wait()
            return _tensors(room, pieces)

        try:
            received = await asyncio.get_running_loop().run_in_executor(None, work)
        except RuntimeError as error:
            raise InfraError(f"the broadcast by {name} failed: {error}") from error
        if self._groups.get(name) is not group:
            raise InfraError(f"the group {name} was given up")
        self._received |= received

    def take(self) -> dict[str, Tensor]:
        """All that was received since `begin`."""
        received, self._received = self._received, {}
        return received


_Piece = tuple[str, torch.dtype, tuple[int, ...], str]


def _pieces(body: Mapping[str, Any]) -> list[_Piece]:
    """Name, type, shape and checksum ("": not checked) of each tensor in a bucket."""
    names = body.get("names")
    if not isinstance(names, list) or not names:
        raise DataError("a bucket needs names")
    checksums = body.get("xxh3") or [""] * len(names)  # ours: SGLang checks nothing
    try:
        rows = zip(names, body["dtypes"], body["shapes"], checksums, strict=True)
        return [(str(name), _dtype(dtype), tuple(map(int, shape)), str(xxh3)) for name, dtype, shape, xxh3 in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"a bucket needs names, dtypes and shapes of one length: {error}") from error


def _dtype(name: object) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of torch")
    return found


def _bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel() * dtype.itemsize


def _tensors(room: Tensor, pieces: list[_Piece]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    start = 0
    for name, dtype, shape, xxh3 in pieces:
        part = room[start : start + _bytes(dtype, shape)]
        start += part.numel()
        if xxh3 and xxhash.xxh3_128_hexdigest(part.numpy().data) != xxh3:
            raise DataError(f"tensor {name!r} that was received differs from what was published")
        made[name] = part.view(dtype).view(shape)
    return made
