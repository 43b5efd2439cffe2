"""Dataset cursor: the row of a prompt group or of an evaluation.

Owns the dataset cursor: g decides, nothing else.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from areal.data.snapshot import Snapshot
from areal.errors import DataError


class PreparedRows:
    """The prepared training rows in the job's order, and the evaluation rows in theirs."""

    def __init__(self, train: Path, evaluation: Path | None, seed: int) -> None:
        self._train = Snapshot(train)
        self._evaluation = Snapshot(evaluation) if evaluation is not None else None
        self._order = self._train.order(seed)

    def row(self, group: int) -> bytes:
        """The row of prompt group `group`, as JSON."""
        return self._train.row_json(self._order.row(group))

    def place(self, group: int) -> str:
        """Where the group's row is, for people."""
        return self._train.place(self._order.row(group))

    def evaluation_row(self, row: int) -> bytes:
        """Row `row` of the evaluation set, as JSON."""
        assert self._evaluation is not None
        return self._evaluation.row_json(row)

    def evaluation_sets(self, column: str, count: int) -> tuple[str, ...]:
        """The set of each of the first `count` evaluation rows. Raises DataError for a row that names none."""
        names = []
        for row in range(count):
            name = orjson.loads(self.evaluation_row(row)).get(column)
            if not isinstance(name, str | int) or isinstance(name, bool) or name == "":
                raise DataError(
                    f"held-out row {row} names no set in its column {column!r}",
                    fix="give every row of dataset.evaluation a name there, or leave out evaluation.setColumn",
                )
            names.append(str(name))
        return tuple(names)

    def evaluation_rows(self, wanted: int | None) -> int:
        """How many rows an evaluation has; all of them when None are wanted."""
        if self._evaluation is None:
            return 0
        return len(self._evaluation) if wanted is None else min(wanted, len(self._evaluation))
