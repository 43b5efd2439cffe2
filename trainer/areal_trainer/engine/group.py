"""The process group of the trainer's ranks, and what they say to each other.

Owns set-up and tear-down of torch.distributed, and one message form: named numpy arrays and a JSON header, sent from
rank 0 to all in two broadcasts. Never a pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

_COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # rank 0 speaks every few seconds, so silence this long is a death


@dataclass(frozen=True)
class Message:
    """What rank 0 tells the others."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[np.generic]]


class Ranks:
    """All ranks of this trainer. With one rank no call communicates."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            if "MASTER_ADDR" in os.environ:
                dist.init_process_group(backend, timeout=_COLLECTIVE_TIMEOUT)
            else:  # one rank without torchrun: tests and notebooks
                dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        self.mesh: DeviceMesh = init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("dp",))

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone talks to the other roles."""
        return self.rank == 0

    def tell(self, message: Message | None) -> Message:
        """Rank 0 gives a message, the others give None; all get it."""
        if self.world_size == 1:
            assert message is not None
            return message
        size = torch.zeros(2, dtype=torch.int64)
        body = torch.zeros(0, dtype=torch.uint8)
        if self.first:
            assert message is not None
            header, body = _encode(message)
            size[0], size[1] = len(header), body.numel()
            body = torch.cat([torch.frombuffer(bytearray(header), dtype=torch.uint8), body])
        dist.broadcast(size, 0)
        if not self.first:
            body = torch.zeros(int(size.sum()), dtype=torch.uint8)
        dist.broadcast(body, 0)
        return message if message is not None else _decode(body.numpy(), int(size[0]))

    def add(self, tensor: Tensor) -> None:
        """Sum over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.SUM)

    def maximum(self, tensor: Tensor) -> None:
        """Maximum over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.MAX)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier()

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _encode(message: Message) -> tuple[bytes, Tensor]:
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    layout = [(name, array.dtype.str, list(array.shape)) for name, array in arrays.items()]
    raw = b"".join(array.tobytes() for array in arrays.values())
    body = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.zeros(0, dtype=torch.uint8)
    return json.dumps({"header": message.header, "arrays": layout}).encode(), body


def _decode(raw: NDArray[np.uint8], header_size: int) -> Message:
    described: Mapping[str, Any] = json.loads(raw[:header_size].tobytes())
    arrays: dict[str, NDArray[np.generic]] = {}
    start = header_size
    for name, dtype, shape in described["arrays"]:
        size = int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(raw[start : start + size].tobytes(), dtype=dtype).reshape(shape)
        start += size
    return Message(described["header"], arrays)
