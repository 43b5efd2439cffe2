"""What the scheduler needs of a model and of its cache, whichever code computes the forward pass."""

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from areal.engine.model_config import ModelConfig


class RowCache(Protocol):
    """What the forward pass keeps of the running requests: one row a request, dense from row 0."""

    rows: int
    capacity: int

    def reserve(self, rows: int, capacity: int, live_rows: int) -> None:
        """Make room for `rows` rows of `capacity`, keeping what the first `live_rows` rows hold."""

    def reset(self) -> None:
        """Give the memory back. Only when no row is live."""

    def drop(self) -> None:
        """Give all of it back, until `reset`. Only when no row is live."""

    def copy_rows(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows `source` to rows `target` (int64 [n] each)."""


class ForwardModel(Protocol):
    """A model without weights: those of a version are opaque to callers, come with each call and never change."""

    config: ModelConfig

    @property
    def rewinds(self) -> bool:
        """Whether a row of the cache may be used up to any position: then a prefix is had from a row that went on, and
        padding on the right is harmless."""

    def new_cache(self) -> Any:
        """Rows, all free."""

    def load(self, path: Path) -> Any:
        """Weights of a Hugging Face directory. Raises DataError naming the tensor that is missing or misshapen."""

    def build(self, path: Path, raw: dict[str, Tensor]) -> Any:
        """Weights of tensors by Hugging Face name, which are copied. `path` is where they come from, for errors."""

    def adapted(self, base: Any, path: Path) -> Any:
        """`base` with the adapter in `path`. Raises DataError for one of another model, or where none can be had."""

    def checksums(self, weights: Any) -> dict[str, str]:
        """xxh3-128 of each tensor by Hugging Face name."""

    def decode(self, weights: Any, cache: Any, tokens: Tensor, positions: Tensor) -> Tensor:
        """Append one token to each of the rows 0…n−1 and return their next-token logits, float32 [n, vocab]."""

    def prefill(
        self, weights: Any, cache: Any | None, tokens: Tensor, rows: Tensor | None, *, hidden: bool
    ) -> Tensor | None:
        """Run whole prompts into `rows` of the cache; with `hidden`, return what `logits` takes of each position."""

    def logits(self, weights: Any, hidden: Tensor) -> Tensor:
        """Next-token logits of hidden states [n, hidden], float32 [n, vocab]."""
