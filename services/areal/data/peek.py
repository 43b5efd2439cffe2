"""The first rows of a source, read as a snapshot is made from them, so that a bad row is found before a run.

Writes nothing. Bounded by work, never by time, so that the answer is the same on any machine at any load: rows and
bytes count, a library's import doesn't. What wasn't reached is told, not judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from areal.data.adapters import read_rows
from areal.data.rows import Column, check_row, encode
from areal.data.source import Source, describe
from areal.errors import DataError

ROWS = 200_000  # that are read and have their columns looked at
TEXT_BYTES = 32 << 20  # of such rows as JSON
LOOKED_AT = 2_000  # rows that `each` is told: they are rendered, or encoded


@dataclass(frozen=True)
class DatasetPeek:
    """What was read: how many rows, whether those were all, the columns of the first one, how many `each` was told."""

    rows: int
    whole: bool
    columns: frozenset[str]
    told: int


def peek(
    source: Source,
    *,
    required: Sequence[Column] = (),
    limit: int = ROWS,
    each: Callable[[str, dict[str, Any]], None] | None = None,
) -> DatasetPeek:
    """Read and check rows from the start.

    Args:
        required: columns that every row must have, as for `prepare`.
        limit: at most so many rows, and at most TEXT_BYTES of them.
        each: told the place and the values of the first LOOKED_AT rows.

    Raises:
        DataError: the first row that a run would refuse, with its place; or a source without rows.
    """
    columns, count, left = frozenset[str](), 0, TEXT_BYTES
    for place, row, text in read_rows(source):
        if count >= limit or left <= 0:
            return DatasetPeek(count, False, columns, min(count, LOOKED_AT))
        check_row(row, required, place)
        left -= len(encode(row, place) if text is None else text)
        if count == 0:
            columns = frozenset(row)
        if each is not None and count < LOOKED_AT:
            each(place, row)
        count += 1
    if count == 0:
        raise DataError(f"{describe(source)} has no rows", fix="give a dataset with at least one row")
    return DatasetPeek(count, True, columns, min(count, LOOKED_AT))
