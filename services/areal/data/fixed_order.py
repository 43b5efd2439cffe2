"""The order of a supervised run: which rows each step uses, in which epoch. Pure.

A position counts the rows that are used, repetitions included: 0, 1, 2, … Step s has the positions from s·B on, the
last step what is left. Each epoch is one permutation of the rows, the same on every machine and after any restart.
"""

from __future__ import annotations

from dataclasses import dataclass

from areal.data.order import row_of
from areal.spec.supervised import FixedRows


@dataclass(frozen=True)
class Order:
    """The rows of a run on a dataset of `rows` rows."""

    rows: int
    batch: int
    positions: int  # of the whole run
    seed: int

    @classmethod
    def of(cls, block: FixedRows, rows: int, seed: int) -> Order:
        """The order that a job asks for."""
        return cls(rows, block.batch_size, block.positions(rows), seed)

    @property
    def steps(self) -> int:
        return -(-self.positions // self.batch)

    def span(self, step: int) -> range:
        """The positions of a step."""
        return range(step * self.batch, min((step + 1) * self.batch, self.positions))

    def row(self, position: int) -> int:
        """The dataset's row at a position."""
        return row_of(position, self.rows, self.seed)

    def epoch(self, step: int) -> float:
        """How many times the dataset was used when the step is done."""
        return self.span(step).stop / self.rows
