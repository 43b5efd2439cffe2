"""A gather of small byte strings at rank 0, on a process group of its own, that names who doesn't come.

For threads that work beside training: collectives of the training group may run meanwhile, in another order. Never a
pickle. Every call has a deadline.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from areal.errors import InfraError
from areal.observe.waits import WaitRegistry
from torch import Tensor

from areal_trainer.engine.group import RankGroup

LOAD_DEADLINE_S = 3600.0  # between the first rank with its part of the model and the last: a cold volume is slow


class Meeting:
    """All ranks make one at the same place of the program, and call it in the same order."""

    def __init__(self, ranks: RankGroup, what: str, timeout_s: float) -> None:
        """`what` is done before the meeting, in words, for the error of who waits for the others in vain."""
        self._ranks = ranks
        self._what = what
        self._timeout_s = timeout_s
        self._group: Any = None
        if ranks.world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    @property
    def group(self) -> Any:
        """The process group, for other collectives of the same thread; None with one rank."""
        return self._group

    def all_here(self, waits: WaitRegistry) -> None:
        """Wait until every rank is done with what comes before the meeting. Raises InfraError as `gather` does."""
        with waits.waiting("ranks", f"every rank to be done with {self._what}", deadline_s=self._timeout_s):
            self.gather(b"here")

    def gather(self, said: bytes) -> list[bytes]:
        """Messages of all ranks, in their order; on ranks above 0 nothing.

        Raises InfraError when a rank doesn't come in time.
        """
        if self._ranks.world_size == 1:
            return [said]
        try:
            # Its error on rank 0 names the ranks that are missing.
            dist.monitored_barrier(self._group, timedelta(seconds=self._timeout_s), wait_all_ranks=True)
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._ranks.world_size)]
            dist.all_gather(sizes, torch.tensor([len(said)]), group=self._group)
            longest = max(int(size) for size in sizes)
            mine = torch.zeros(longest, dtype=torch.uint8)
            mine[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
            parts = [torch.zeros_like(mine) for _ in sizes] if self._ranks.first else None
            dist.gather(mine, parts, 0, group=self._group)
        except RuntimeError as error:
            raise InfraError(
                f"not every rank was done with {self._what} within {self._timeout_s:.0f} s of another: {error}",
                fix="look at the ranks that are missing, and at the run's volume",
            ) from error
        return [_bytes(part, size) for part, size in zip(parts or [], sizes, strict=False)]


def failures(said: Sequence[bytes]) -> str:
    """Which ranks came with a failure, in words; empty when none did. A failure is said as `failed(error)`."""
    bad = {rank: one for rank, one in enumerate(said) if one.startswith(_FAILED)}
    return "; ".join(f"rank {rank}: {one.removeprefix(_FAILED).decode()}" for rank, one in bad.items())


def failed(error: BaseException) -> bytes:
    """Message of a rank whose part went wrong."""
    return _FAILED + f"{type(error).__name__}: {error}".encode()


_FAILED = b"\x00failed "  # JSON never begins so


def _bytes(part: Tensor, size: Tensor) -> bytes:
    return part[: int(size)].numpy().tobytes()
