"""The process group of the trainer's ranks, and what they say to each other.

Owns set-up and tear-down of torch.distributed, and how rank 0 tells all others a message, in two broadcasts.
"""

import json
import os
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from areal.errors import ConfigError
from numpy.typing import NDArray
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from areal_trainer.engine.context import Context

# ---- A message between ranks: named numpy arrays and a JSON header, as one tensor of bytes. Never a pickle


_HEAD = struct.Struct("<q")  # bytes of the JSON that follows


@dataclass(frozen=True)
class RankMessage:
    """What one rank tells others."""

    header: dict[str, Any]
    arrays: dict[str, NDArray[np.generic]]


def encoded(message: RankMessage) -> Tensor:
    """The message as bytes, [size] uint8."""
    arrays = {name: np.ascontiguousarray(array) for name, array in message.arrays.items()}
    layout = [(name, array.dtype.str, list(array.shape)) for name, array in arrays.items()]
    head = json.dumps({"header": message.header, "arrays": layout}).encode()
    raw = bytearray().join((_HEAD.pack(len(head)), head, *(array.tobytes() for array in arrays.values())))
    return torch.frombuffer(raw, dtype=torch.uint8)


def decoded(raw: Tensor) -> RankMessage:
    """The reverse of `encoded`."""
    data: NDArray[np.uint8] = raw.numpy()
    start = _HEAD.size
    (size,) = _HEAD.unpack(data[:start].tobytes())
    described: Mapping[str, Any] = json.loads(data[start : start + size].tobytes())
    start += size
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, dtype, shape in described["arrays"]:
        size = int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data[start : start + size].tobytes(), dtype=dtype).reshape(shape)
        start += size
    return RankMessage(described["header"], arrays)


# ---- The process group of the trainer's ranks, and what they say to each other


COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # rank 0 speaks every few seconds, so silence this long is a death
_SLICE_S = 5.0  # between two words of rank 0

T = TypeVar("T")


class RankGroup:
    """All ranks of this trainer. With one rank no call communicates.

    A replica holds the whole model and its optimizer, sharded over its `shards` ranks, which have consecutive numbers
    (one node, or several that are near each other). `tensor` ranks next to each other split the layers among them, and
    `context` such groups next to each other the tokens: they get the same micro-batches, so there are world_size /
    (context · tensor) data ranks. Layers are sharded over the ranks of a context group as over any others.
    """

    def __init__(self, replicas: int = 1, tensor: int = 1, context: int = 1) -> None:
        self.rank, self.world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
            if "MASTER_ADDR" in os.environ:
                dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
            else:  # one rank without torchrun: tests and notebooks
                dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        together = context * tensor  # ranks with the same micro-batches
        if self.world_size % (replicas * together):
            raise ConfigError(
                f"{self.world_size} ranks can't hold {replicas} equal copies of the model in parts of {together} ranks",
                fix="make trainer.mesh.replicate · context · tensor a divisor of the number of processes",
            )
        self.shards = self.world_size // replicas
        self.data_size, self.data_rank = self.world_size // together, self.rank // together
        self.averaged = self.world_size // tensor  # ranks over which FSDP takes the mean of gradients
        self.mesh = self._mesh({"replicate": replicas, "shard": self.shards})
        self.layer_mesh, self.tensor_mesh = self.mesh, None  # over which layers are sharded, and split
        self._data_group: Any = None
        if tensor > 1:
            whole = self._mesh({"replicate": replicas, "shard": self.shards // tensor, "tensor": tensor})
            names = whole.mesh_dim_names or ()
            self.layer_mesh, self.tensor_mesh = whole[names[:-1]], whole["tensor"]
        if together > 1:
            others = [list(range(place, self.world_size, together)) for place in range(together)]
            self._data_group, _ = dist.new_subgroups_by_enumeration(others)
        self.context: Context | None = None
        if context > 1:
            firsts = [first + at for first in range(0, self.world_size, together) for at in range(tensor)]
            lines = [list(range(first, first + together, tensor)) for first in firsts]
            group, _ = dist.new_subgroups_by_enumeration(lines)
            self.context = Context(group, self.rank // tensor % context, context)

    def _mesh(self, sizes: Mapping[str, int]) -> DeviceMesh:
        """Without replicas there is no dimension of them."""
        made = {name: size for name, size in sizes.items() if name != "replicate" or size > 1}
        return init_device_mesh(self.device.type, tuple(made.values()), mesh_dim_names=tuple(made))

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone talks to the other roles."""
        return self.rank == 0

    def replica_of(self, rank: int) -> int:
        """Which copy of the model a rank holds a part of."""
        return rank // self.shards

    def tell(self, message: RankMessage | None) -> RankMessage:
        """Rank 0's message, on every rank; what the others give is not looked at."""
        if self.world_size == 1:
            assert message is not None
            return message
        size = torch.zeros(1, dtype=torch.int64)
        body = torch.zeros(0, dtype=torch.uint8)
        if self.first:
            assert message is not None
            body = encoded(message)
            size[0] = body.numel()
        dist.broadcast(size, 0)
        if not self.first:
            body = torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(body, 0)
        return message if self.first and message is not None else decoded(body)

    def add(self, tensor: Tensor) -> None:
        """Sum over data ranks, in place: ranks that split layers or tokens have the same."""
        if self.data_size > 1:
            dist.all_reduce(tensor, dist.ReduceOp.SUM, group=self._data_group)

    def add_all(self, tensor: Tensor) -> None:
        """Sum over all ranks, in place."""
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


class _Nobody:
    """Null object: whatever is called on it, or on what it has, does nothing and returns None."""

    def __getattr__(self, name: str) -> "_Nobody":
        return self

    def __call__(self, *given: object, **named: object) -> None:
        return None


def first_only(ranks: RankGroup, make: Callable[[], T]) -> T:
    """What rank 0 alone has. The others get a null object, so that nobody asks which rank it is."""
    return make() if ranks.first else cast(T, _Nobody())


def wait_together(ranks: RankGroup, done: Callable[[float], bool] | None) -> None:
    """Wait until rank 0's `done`, asked for a few seconds at a time, says so; the others' is not asked.

    Rank 0 speaks after each of them: a collective may wait for minutes, what is waited for may take hours.
    """
    while True:
        said = RankMessage({"done": done(_SLICE_S)}, {}) if ranks.first and done is not None else None
        if ranks.tell(said).header["done"]:
            return


def first_works(ranks: RankGroup, work: Callable[[], T]) -> T:
    """What rank 0's `work` returns, there; the others wait, however long it takes, for a null object. A collective.

    `work` runs on a thread, and says itself what it waits for. What it raises, rank 0 raises.
    """
    if ranks.world_size == 1:
        return work()
    if not ranks.first:
        wait_together(ranks, None)
        return cast(T, _Nobody())
    pool = ThreadPoolExecutor(1, thread_name_prefix="areal-first")
    try:
        running = pool.submit(work)
        wait_together(ranks, lambda within_s: bool(wait([running], within_s).done))
        return running.result()
    finally:
        pool.shutdown(wait=False)
