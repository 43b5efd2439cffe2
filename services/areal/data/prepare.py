"""Writes a snapshot of a source: all of it or nothing.

Owns the checks that a dataset must pass before a run starts (not empty, decodable, the asked columns in every row) and
the atomic replacement of an older snapshot. Never changes a snapshot in place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from areal.data.adapters import read_rows
from areal.data.snapshot import INDEX, META, ROWS, Meta, Snapshot, read_meta
from areal.data.source import Source, describe, fingerprint
from areal.errors import DataError

Column = str | tuple[str, ...]  # a tuple: any one of these
_PROGRESS_EVERY = 1000  # rows between two calls of `progress`
_JSON_TYPES: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", tuple: "array", dict: "object",
}  # fmt: skip


def prepare(
    source: Source,
    out_dir: Path,
    *,
    required: Sequence[Column] = (),
    progress: Callable[[int], None] | None = None,
) -> Snapshot:
    """Reads `source` into a snapshot at `out_dir`, or opens the one there when the source is unchanged.

    Args:
        source: what to read.
        out_dir: the snapshot's directory; an older snapshot there is replaced, anything else is left alone.
        required: columns that every row must have; a tuple asks for any one of its names.
        progress: told the number of rows read so far, now and then.

    Raises:
        DataError: the dataset is empty, undecodable or lacks a column; `out_dir` is then as it was.
    """
    mark = fingerprint(source)
    existing = read_meta(out_dir)
    if existing is None and out_dir.exists() and any(out_dir.iterdir()):
        raise DataError(f"{out_dir} is not empty and holds no prepared dataset", fix="choose another output directory")
    if existing is not None and mark is not None and existing.fingerprint == mark and _satisfies(existing, required):
        return Snapshot(out_dir)
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.tmp-", dir=out_dir.parent))
    try:
        meta = _write(source, work, required, mark, progress)
        if existing is not None and existing == meta:
            return Snapshot(out_dir)
        work.chmod(0o755)
        _replace(work, out_dir)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Snapshot(out_dir)


def _write(
    source: Source, work: Path, required: Sequence[Column], mark: str | None, progress: Callable[[int], None] | None
) -> Meta:
    offsets = array("Q", [0])
    digest = hashlib.sha256()
    columns: dict[str, str] = {}
    present: dict[str, int] = {}
    count = 0
    with (work / ROWS).open("wb") as file:
        for place, row, text in read_rows(source):
            _check_row(row, required, place)
            for name, value in row.items():
                if value is None:
                    continue
                kind = _JSON_TYPES.get(type(value), "object")
                if columns.setdefault(name, kind) != kind:
                    columns[name] = "mixed"
                present[name] = present.get(name, 0) + 1
            line = (text if text is not None else _encode(row, place)) + b"\n"
            file.write(line)
            digest.update(line)
            offsets.append(offsets[-1] + len(line))
            count += 1
            if progress is not None and count % _PROGRESS_EVERY == 0:
                progress(count)
        _sync(file)
    if count == 0:
        raise DataError(f"{describe(source)} has no rows", fix="give a dataset with at least one row")
    if progress is not None:
        progress(count)
    columns = {name: kind if present[name] == count else f"{kind}?" for name, kind in columns.items()}
    with (work / INDEX).open("wb") as file:
        if array("Q", [1]).tobytes()[0] != 1:  # a big-endian machine
            offsets.byteswap()
        offsets.tofile(file)
        _sync(file)
    meta = Meta(
        count=count,
        size_bytes=(work / ROWS).stat().st_size,
        digest=digest.hexdigest(),
        columns=columns,
        source=describe(source),
        fingerprint=mark,
    )
    with (work / META).open("wb") as file:
        file.write(meta.to_json())
        _sync(file)
    return meta


def _check_row(row: dict[str, Any], required: Sequence[Column], place: str) -> None:
    for column in required:
        names = (column,) if isinstance(column, str) else column
        if not any(row.get(name) is not None for name in names):
            _missing(place, names, row)


def _satisfies(meta: Meta, required: Sequence[Column]) -> bool:
    """Whether a snapshot surely passes `_check_row` everywhere. When in doubt the rows are read again."""
    return all(
        any(
            not meta.columns.get(name, "?").endswith("?") for name in ((column,) if isinstance(column, str) else column)
        )
        for column in required
    )


def _missing(place: str, names: tuple[str, ...], found: dict[str, Any]) -> None:
    wanted = " or ".join(f'"{name}"' for name in names)
    have = ", ".join(f'"{name}"' for name in found) or "no columns"
    raise DataError(
        f"{place}: column {wanted} is missing (found {have})",
        fix=f"give every row {wanted}, or name the right column in the job (reward.answerField, huggingFace.columns)",
    )


def _encode(row: dict[str, Any], place: str) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS, default=_plain)
    except TypeError as error:
        raise DataError(f"{place}: a value is no JSON: {error}", fix="drop the column or turn it into text") from None


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, tuple):
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _replace(work: Path, out_dir: Path) -> None:
    """Puts `work` in the place of `out_dir`. A crash in between leaves no snapshot, never half of one."""
    old = out_dir.with_name(f".{out_dir.name}.old-{os.getpid()}")
    if out_dir.exists():
        out_dir.rename(old)
    work.rename(out_dir)
    shutil.rmtree(old, ignore_errors=True)
    descriptor = os.open(out_dir.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
