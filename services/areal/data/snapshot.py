"""A prepared dataset on disk: `rows.jsonl`, `index.bin` and `meta.json` in one directory.

Owns the format. Rows are read through a memory map, so a snapshot of any size opens at once and costs no memory.
A snapshot never changes after it is written; `digest` names its rows.
"""

import hashlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from areal.data.adapters import read_rows
from areal.data.order import RowOrder, SourceShare
from areal.data.rows import Column, check_row, encode
from areal.data.source import Source, describe
from areal.errors import DataError

ROWS = "rows.jsonl"
INDEX = "index.bin"  # little-endian u64 offsets into rows.jsonl: count + 1 of them, the last is the file's size
META = "meta.json"
FORMAT = 1
_REMAKE = "run `areal prepare` again"


@dataclass(frozen=True)
class SnapshotPart:
    """The rows of one source, which follow on those of the one before."""

    source: str  # in words
    rows: int
    weight: float = 1.0


@dataclass(frozen=True)
class Meta:
    """What `meta.json` says of a snapshot."""

    count: int
    size_bytes: int  # of rows.jsonl
    digest: str  # sha256 of rows.jsonl
    columns: dict[str, str]  # name → JSON type or "mixed"; "?" at its end: missing or null in some rows
    source: str  # in words
    fingerprint: str | None  # of the source; see `source.fingerprint`
    parts: list[SnapshotPart] = field(default_factory=list)  # one a source
    left_out: dict[str, int] = field(default_factory=dict)  # how many rows of the source it lacks, by reason
    format: int = FORMAT

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_meta(directory: Path) -> Meta | None:
    """The snapshot's description; None when the directory holds none (or one that another version wrote)."""
    try:
        fields = orjson.loads((directory / META).read_bytes())
        meta = Meta(**{**fields, "parts": [SnapshotPart(**part) for part in fields.get("parts", [])]})
    except (OSError, orjson.JSONDecodeError, TypeError):
        return None
    return meta if meta.format == FORMAT else None


class Snapshot:
    """Read access to a prepared dataset.

    Raises:
        DataError: when the directory holds no snapshot or a damaged one.
    """

    def __init__(self, directory: Path) -> None:
        meta = read_meta(directory)
        if meta is None:
            raise DataError(f"{directory} holds no prepared dataset", fix=_REMAKE)
        self.directory = directory
        self.meta = meta
        try:
            self._offsets = np.fromfile(directory / INDEX, dtype="<u8")
            with (directory / ROWS).open("rb") as file:
                self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DataError(f"the prepared dataset {directory} is damaged: {error}", fix=_REMAKE) from None
        size = len(self._rows)
        if len(self._offsets) != meta.count + 1 or size != meta.size_bytes or int(self._offsets[-1]) != size:
            raise DataError(f"the prepared dataset {directory} is damaged: its files disagree in size", fix=_REMAKE)

    def __len__(self) -> int:
        return self.meta.count

    @property
    def digest(self) -> str:
        """Names the rows and their order."""
        return self.meta.digest

    @property
    def columns(self) -> dict[str, str]:
        return self.meta.columns

    def order(self, seed: int) -> RowOrder:
        """Which row each prompt group has, or each position of a training on fixed rows."""
        return RowOrder(tuple(SourceShare(part.rows, part.weight) for part in self.parts), seed)

    def place(self, index: int) -> str:
        """Where a row comes from, for messages: its source, and its number there from 1, rows left out not counted."""
        for part in self.parts:
            if index < part.rows:
                return f"{part.source}, row {index + 1}"
            index -= part.rows
        raise IndexError(f"row {index} beyond a dataset with {self.meta.count} rows")

    @property
    def parts(self) -> list[SnapshotPart]:
        """The sources of the rows, in their order."""
        return self.meta.parts or [SnapshotPart(self.meta.source, self.meta.count)]

    @property
    def longest(self) -> int:
        """Bytes of the longest row, as JSON."""
        return int(np.diff(self._offsets).max(initial=0))

    def row_json(self, index: int) -> bytes:
        """The row as JSON text, without a line end."""
        if not 0 <= index < self.meta.count:
            raise IndexError(f"row {index} of a dataset with {self.meta.count} rows")
        return self._rows[int(self._offsets[index]) : int(self._offsets[index + 1]) - 1]

    def row(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = orjson.loads(self.row_json(index))
        return row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.row(index) for index in range(len(self)))

    def verify(self) -> None:
        """Reads everything and compares it with the digest."""
        if hashlib.sha256(self._rows).hexdigest() != self.meta.digest:
            raise DataError(f"the rows of the prepared dataset {self.directory} were changed", fix=_REMAKE)

    def close(self) -> None:
        self._rows.close()


# ---- The first rows of a source, read as a snapshot is made from them, so that a bad row is found before a run
# Bounded by work, never by time, so that the answer is the same on any machine. What wasn't reached is told, not
# judged.


PEEKED_ROWS = 200_000  # that are read and have their columns looked at
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
    limit: int = PEEKED_ROWS,
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
