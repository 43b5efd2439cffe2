"""Rows of a Hugging Face cache: keys and values aligned on the right, states of recurrent layers beside them.

What stands left of a row's beginning is masked. A recurrent layer's state has no length and a window only its end, so
a row is had at its own end alone: `copy_rows` copies it whole.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from areal.engine.cache import SMALLEST_CAPACITY


class ModuleCache:
    """`past` is the library's own cache of all rows; None until something was computed."""

    def __init__(self, empty: Callable[[], Any]) -> None:
        """`empty` makes the library's cache of this model."""
        self.empty = empty
        self.rows, self.capacity = 1, SMALLEST_CAPACITY
        self.past: Any = None
        self._made = self._width = 0  # rows and positions of `past`

    def reserve(self, rows: int, capacity: int, live_rows: int) -> None:
        """Expect `rows` rows of `capacity`; memory is taken as they grow."""
        self.rows, self.capacity = max(rows, live_rows), max(capacity, self.capacity)

    def reset(self) -> None:
        """Give the memory back. Only when no row is live."""
        self.drop()
        self.rows, self.capacity = 1, SMALLEST_CAPACITY

    def drop(self) -> None:
        """Give all of it back, until `reset`. Only when no row is live."""
        self.past = None
        self.rows = self.capacity = self._made = self._width = 0

    def copy_rows(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy rows `source` to rows `target` (int64 [n] each), whatever their length."""
        if self.past is None:
            return
        self._resize(max(self._made, int(target.max()) + 1), self._width)
        for tensor in self._tensors(self.past):
            tensor[target] = tensor[source]

    def put(self, rows: Tensor, fresh: Any, length: int) -> None:
        """Make `rows` what a cache of as many prompts of one `length` holds."""
        if self.past is None:
            self.past = copy.deepcopy(fresh)
            _change(self.past, lambda tensor, _: tensor[:0])
        self._resize(max(self._made, self.rows, int(rows.max()) + 1), max(self._width, length))
        for mine, other in zip(self._tensors(self.past), self._tensors(fresh), strict=True):
            mine[rows] = 0
            where = mine[:, :, mine.shape[2] - other.shape[2] :] if mine.shape[1:] != other.shape[1:] else mine
            where[rows] = other

    def step(self, positions: Tensor) -> Any:
        """The library's cache of the rows 0…n−1, which are about to get a token at `positions` (int64 [n])."""
        if self.past is None:
            self.past = self.empty()
        else:
            self._resize(len(positions), int(positions.max()))
            if not bool(positions.all()):  # nothing was computed of them: what lies there is another request's
                for tensor in self._tensors(self.past):
                    tensor[positions == 0] = 0
        self._made, self._width = len(positions), int(positions.max()) + 1
        return self.past

    def _resize(self, rows: int, width: int) -> None:
        if (rows, width) == (self._made, self._width):
            return

        def fitted(tensor: Tensor, positions: int | None) -> Tensor:
            grown = rows - tensor.shape[0]
            if positions is None:
                return F.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, grown])
            return F.pad(tensor, (0, 0, positions - tensor.shape[2], 0, 0, 0, 0, grown))  # less than none cuts

        _change(self.past, fitted, width)
        self._made, self._width = rows, width

    @staticmethod
    def _tensors(past: Any) -> Iterator[Tensor]:
        found: list[Tensor] = []

        def look(tensor: Tensor, _: int | None) -> Tensor:
            found.append(tensor)
            return tensor

        _change(past, look)
        return iter(found)


def _change(past: Any, change: Callable[[Tensor, int | None], Tensor], width: int | None = None) -> None:
    """Replace each tensor of the library's cache; keys and values are told how many positions a `width` leaves them."""
    for layer in past.layers:
        kept = width
        if width is not None and getattr(layer, "is_sliding", False):
            kept = min(width, layer.sliding_window - 1)
        for name in ("keys", "values"):
            tensor = getattr(layer, name, None)
            if isinstance(tensor, Tensor) and tensor.dim() == 4:
                setattr(layer, name, change(tensor, kept))
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            for place, state in states.items():
                if state is not None:
                    states[place] = change(state, None)
        if width is not None and hasattr(layer, "cumulative_length"):
            layer.cumulative_length = width
