"""Writes a snapshot of a source: all of it or nothing.

Owns the checks that a dataset must pass before a run starts (not empty, decodable, the asked columns in every row) and
the atomic replacement of an older snapshot. Never changes a snapshot in place.
"""

import errno
import hashlib
import shutil
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal.data.adapters import read_rows
from areal.data.rows import Column, ColumnKey, check_row, encode
from areal.data.snapshot import INDEX, META, ROWS, Meta, Snapshot, SnapshotPart, read_meta
from areal.data.source import Source, describe, fingerprint, parts_of
from areal.errors import ConfigError, DataError
from areal.files import install_directory, sync_directory, sync_file

LeftOut = Callable[[str, Mapping[str, Any]], str | None]
"""Why a row is left out of a snapshot, in words that many rows share; None where it is kept. Told its place."""

MOST_ROW_BYTES = 12 << 20  # a row goes to its worker in one message
_PROGRESS_EVERY = 1000  # rows between two calls of `progress`
_JSON_TYPES: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", tuple: "array", dict: "object",
}  # fmt: skip


def prepare(
    source: Source,
    out_dir: Path,
    *,
    required: Sequence[Column] = (),
    left_out: LeftOut | None = None,
    progress: Callable[[int], None] | None = None,
) -> Snapshot:
    """Reads `source` into a snapshot at `out_dir`, or opens the one there when the source is unchanged.

    Args:
        source: what to read.
        out_dir: the snapshot's directory; an older snapshot there is replaced, anything else is left alone.
        required: columns that every row must have; a tuple asks for any one of its names.
        left_out: rows to leave out; their numbers, by reason, are in the snapshot's description.
        progress: told the number of rows read so far, now and then.

    Raises:
        DataError: the dataset is empty, undecodable or lacks a column; `out_dir` is then as it was.
    """
    mark = fingerprint(source) if left_out is None else None
    existing = read_meta(out_dir)
    if existing is None and out_dir.is_dir() and any(out_dir.iterdir()):
        raise DataError(f"{out_dir} is not empty and holds no prepared dataset", fix="choose another output directory")
    if existing is not None and mark is not None and existing.fingerprint == mark and _satisfies(existing, required):
        return Snapshot(out_dir)
    work = _room_beside(out_dir)
    try:
        meta = _write(source, work, required, left_out, progress, mark)
        if existing is not None and existing == meta:
            return Snapshot(out_dir)
        work.chmod(0o755)
        install_directory(work, out_dir)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Snapshot(out_dir)


def _room_beside(out_dir: Path) -> Path:
    """An empty directory to write into; raises ConfigError where none can be made."""
    try:
        if out_dir.exists() and not out_dir.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is no directory")
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.tmp-", dir=out_dir.parent))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"can't write the dataset to {out_dir}: {reason}", fix="choose another directory") from None


def _write(
    source: Source,
    work: Path,
    required: Sequence[Column],
    left_out: LeftOut | None,
    progress: Callable[[int], None] | None,
    mark: str | None,
) -> Meta:
    offsets = array("Q", [0])
    digest = hashlib.sha256()
    columns: dict[str, str] = {}
    present: Counter[str] = Counter()
    without: Counter[str] = Counter()
    parts: list[SnapshotPart] = []
    count = 0
    with (work / ROWS).open("wb") as file:
        for part, weight in parts_of(source):
            before, dropped = count, without.total()
            for place, row, text in read_rows(part):
                check_row(row, required, place)
                if left_out is not None and (reason := left_out(place, row)) is not None:
                    without[reason] += 1
                    continue
                _note_columns(row, columns, present)
                line = (text if text is not None else encode(row, place)) + b"\n"
                if len(line) > MOST_ROW_BYTES:
                    words = f"{place}: the row has {len(line):,} bytes as JSON, {MOST_ROW_BYTES:,} at most"
                    raise DataError(words, fix="make its images smaller, or drop columns that nothing reads")
                file.write(line)
                digest.update(line)
                offsets.append(offsets[-1] + len(line))
                count += 1
                if progress is not None and count % _PROGRESS_EVERY == 0:
                    progress(count)
            if count == before:
                raise _no_rows(part, without.total() - dropped)
            parts.append(SnapshotPart(describe(part), count - before, weight))
    sync_file(work / ROWS)
    if progress is not None:
        progress(count)
    columns = {name: kind if present[name] == count else f"{kind}?" for name, kind in columns.items()}
    with (work / INDEX).open("wb") as file:
        if array("Q", [1]).tobytes()[0] != 1:  # a big-endian machine
            offsets.byteswap()
        offsets.tofile(file)
    sync_file(work / INDEX)
    meta = Meta(
        count=count,
        size_bytes=(work / ROWS).stat().st_size,
        digest=digest.hexdigest(),
        columns=columns,
        source=describe(source),
        fingerprint=mark,
        parts=parts,
        left_out=dict(without),
    )
    (work / META).write_bytes(meta.to_json())
    sync_file(work / META)
    sync_directory(work)
    return meta


def _note_columns(row: Mapping[str, Any], columns: dict[str, str], present: Counter[str]) -> None:
    for name, value in row.items():
        if value is None:
            continue
        kind = _JSON_TYPES.get(type(value), "object")
        if columns.setdefault(name, kind) != kind:
            columns[name] = "mixed"
        present[name] += 1


def _no_rows(source: Source, left_out: int) -> DataError:
    if left_out:
        return DataError(f"all {left_out} rows of {describe(source)} are left out", fix="see why in the job's dataset")
    return DataError(f"{describe(source)} has no rows", fix="give a dataset with at least one row")


def _satisfies(meta: Meta, required: Sequence[Column]) -> bool:
    """Whether a snapshot surely passes `check_row` everywhere. When in doubt the rows are read again."""

    def names(column: Column) -> tuple[str, ...]:
        return (column.name,) if isinstance(column, ColumnKey) else (column,) if isinstance(column, str) else column

    return all(any(not meta.columns.get(name, "?").endswith("?") for name in names(column)) for column in required)
