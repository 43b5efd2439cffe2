"""Keys and values of the running requests: one row a request, dense from row 0, grown when longer sequences come.

Positions beyond a row's length hold leftovers of earlier requests; attention masks them and decoding overwrites them,
so a row is taken over without being cleared. Only never-written memory must be finite, hence zeroed.
"""

import torch
from torch import Tensor

from areal.engine.model_config import ModelConfig

SMALLEST_CAPACITY = 32  # positions; short tasks keep their cache in the processor's


class KVCache:
    """`keys` and `values` are [layers, rows, kv_heads, capacity, head_dim]."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._config = config
        self._dtype = dtype
        self.rows = 0
        self.capacity = 0
        self._allocate(1, SMALLEST_CAPACITY)

    @staticmethod
    def bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
        """Bytes that one position of one row takes."""
        return 2 * config.layers * config.kv_heads * config.head_dim * dtype.itemsize

    @staticmethod
    def capacity_for(positions: int) -> int:
        """The capacity that rows of `positions` get: the next power of two."""
        return max(SMALLEST_CAPACITY, 1 << (positions - 1).bit_length())

    def reserve(self, rows: int, capacity: int, live_rows: int) -> None:
        """Make room for `rows` rows of `capacity`, keeping what the first `live_rows` rows hold."""
        if rows <= self.rows and capacity <= self.capacity:
            return
        keys, values, kept = self.keys, self.values, self.capacity
        self._allocate(max(rows, live_rows), max(capacity, self.capacity))
        self.keys[:, :live_rows, :, :kept] = keys[:, :live_rows]
        self.values[:, :live_rows, :, :kept] = values[:, :live_rows]

    def reset(self) -> None:
        """Give the memory back. Only when no row is live."""
        self._allocate(1, SMALLEST_CAPACITY)

    def drop(self) -> None:
        """Give all of it back, until `reset`. Only when no row is live."""
        self._allocate(0, 0)

    def copy_rows(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows `source` to rows `target` (int64 [n] each)."""
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def flat_index(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Where (row, position) lies in a layer seen as [rows·kv_heads·capacity, head_dim].

        `rows` and `positions` are int64 [n]; the answer is int64 [n·kv_heads], head fastest.
        """
        heads = self._config.kv_heads
        first = rows[:, None] * heads + torch.arange(heads)
        return (first * self.capacity + positions[:, None]).view(-1)

    def write(self, layer: int, index: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [n·kv_heads, head_dim] at a `flat_index`."""
        dim = self._config.head_dim
        self.keys[layer].view(-1, dim).index_copy_(0, index, keys)
        self.values[layer].view(-1, dim).index_copy_(0, index, values)

    def _allocate(self, rows: int, capacity: int) -> None:
        config = self._config
        shape = (config.layers, rows, config.kv_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=self._dtype)
        self.values = torch.zeros(shape, dtype=self._dtype)
        self.rows = rows
        self.capacity = capacity
