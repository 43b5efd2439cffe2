"""The first rows of a source, read as a snapshot is made from them, so that a bad row is found before a run.

Writes nothing. Bounded by rows and by time: what wasn't reached is told, not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from areal.data.adapters import read_rows
from areal.data.rows import Column, check_row, encode
from areal.data.source import Source, describe
from areal.errors import DataError

_LOOK_AT_CLOCK_EVERY = 64  # rows


@dataclass(frozen=True)
class DatasetPeek:
    """What was read: how many rows, whether those were all, and the columns of the first one."""

    rows: int
    whole: bool
    columns: frozenset[str]


def peek(
    source: Source,
    *,
    required: Sequence[Column] = (),
    limit: int,
    seconds: float,
    each: Callable[[str, dict[str, Any]], None] | None = None,
    clock: Callable[[], float] = time.process_time,
) -> DatasetPeek:
    """Read and check rows from the start.

    Args:
        required: columns that every row must have, as for `prepare`.
        limit: at most so many rows, in at most so many `seconds` of processor time.
        each: told the place and the values of every row.

    Raises:
        DataError: the first row that a run would refuse, with its place; or a source without rows.
    """
    began, columns, count = clock(), frozenset[str](), 0
    for place, row, text in read_rows(source):
        if count >= limit or (count % _LOOK_AT_CLOCK_EVERY == 0 and clock() - began > seconds):
            return DatasetPeek(count, False, columns)
        check_row(row, required, place)
        if text is None:
            encode(row, place)
        if count == 0:
            columns = frozenset(row)
        if each is not None:
            each(place, row)
        count += 1
    if count == 0:
        raise DataError(f"{describe(source)} has no rows", fix="give a dataset with at least one row")
    return DatasetPeek(count, True, columns)
