"""Process group of one broadcast: rendezvous by a TCP store, gloo or NCCL, outside of torch's default group.

The keys in the store are those of SGLang's `init_weights_update_group`, so stock engines are ranks of it. Everything
ends by an error: a rank that dies, one that doesn't come within the timeout, a group that is given up.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore


def rendezvous_server(timeout_s: float) -> TCPStore:
    """The store that all ranks of a group meet at, on a free port of all addresses. Closed when it is forgotten."""
    return TCPStore("0.0.0.0", 0, None, True, timedelta(seconds=timeout_s), wait_for_workers=False)


def join_group(
    backend: str, address: str, port: int, *, name: str, rank: int, world_size: int, timeout_s: float
) -> ProcessGroup:
    """Become a rank of a group. Returns when all ranks are there; raises RuntimeError when they don't come in time."""
    timeout = timedelta(seconds=timeout_s)
    store = TCPStore(address, port, world_size, False, timeout, wait_for_workers=True)
    return ProcessGroup(backend, PrefixStore(name, store), name, rank, world_size, timeout)


class ProcessGroup:
    """One rank of a group whose rank 0 broadcasts."""

    def __init__(self, backend: str, store: Store, name: str, rank: int, size: int, timeout: timedelta) -> None:
        self.name = name
        self._group: Any = _made(backend, PrefixStore(f"{name}/", store), rank, size, timeout)

    def broadcast(self, tensor: Tensor) -> Any:
        """Begin to send (rank 0) or receive `tensor`; returns torch's handle of the work."""
        if self._group is None:
            raise RuntimeError(f"the group {self.name} was given up")
        return self._group.broadcast(tensor, 0)

    def give_up(self) -> None:
        """Close the connections: every other rank gets an error. Returns at once; what runs ends by the timeout."""
        holder = [self._group]  # the only reference, or the closing might be left to this thread
        self._group = None
        threading.Thread(target=holder.clear, name="areal-leave-group", daemon=True).start()


def _made(backend: str, store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    if backend == "nccl":
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        return ProcessGroupNCCL(PrefixStore("cuda/", store), rank, size, options)
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo(PrefixStore("cpu/", store), rank, size, timeout=timeout)
