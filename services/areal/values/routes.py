"""Routes: the experts that a token went to, as one row of bytes.

Of each decoder layer the ids that its router chose, of one byte each, or of two beyond 255 experts; bytes 0xFF stand
for what isn't known, and for layers without experts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MISSING = 0xFF


@dataclass(frozen=True)
class RouteShape:
    """Of a model with experts: its decoder layers, those with a router, and what a router chooses from."""

    layers: int
    routed: tuple[int, ...]
    experts: int
    chosen: int

    @property
    def wide(self) -> bool:
        """Whether an id takes two bytes."""
        return self.experts > MISSING

    @property
    def row_bytes(self) -> int:
        """Of a token."""
        return self.layers * self.chosen * (1 + self.wide)

    def rows(self, chosen: NDArray[np.integer]) -> NDArray[np.uint8]:
        """What the routers chose, [tokens, layers with a router, chosen], as rows of bytes [tokens, row]."""
        ids = np.full((len(chosen), self.layers, self.chosen), -1, "<i2")
        ids[:, list(self.routed)] = chosen
        told = ids if self.wide else ids.astype("u1")  # −1 has all its bits, too
        return told.reshape(len(ids), self.row_bytes // (1 + self.wide)).view("u1")

    def rows_of_layers(self, told: bytes) -> NDArray[np.uint8] | None:
        """SGLang's form, int32 [tokens, layers, chosen] with anything in layers without a router, as rows of bytes.

        None where it can't be routers' choices: of another shape, outside the experts, or an expert twice.
        """
        ids = np.frombuffer(told, "<i4")
        if not ids.size or ids.size % (self.layers * self.chosen):
            return None
        chosen = ids.reshape(-1, self.layers, self.chosen)[:, list(self.routed)]
        ordered = np.sort(chosen, axis=-1)
        if ordered.min() < 0 or ordered.max() >= self.experts or (ordered[..., 1:] == ordered[..., :-1]).any():
            return None
        return self.rows(chosen)
