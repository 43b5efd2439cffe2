"""Data files read as they are: JSON lines, JSON, CSV and parquet, also packed with gzip or Zstandard.

Owns that a value comes out as it was written: the text "007" stays that text, a date stays its text, and no library
guesses a column's type from its first rows. Rows have `file:line` (of parquet and JSON arrays `file:row`) as place.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import zstandard

from areal.distribution import install
from areal.errors import ConfigError, DataError
from areal.values.images import image_of

Read = tuple[str, dict[str, Any], bytes | None]

PACKED = (".gz", ".zst")
KINDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
_BOM = b"\xef\xbb\xbf"
_UNREAD = (OSError, EOFError, zlib.error, zstandard.ZstdError)
_WRAPPERS = ("data", "rows", "examples", "instances", "train")
_BATCH = 1024  # rows of parquet held at once


def is_data_file(path: Path) -> bool:
    """Whether a file is of a kind that is read here, by its name."""
    return _kind(path) in KINDS


def read_file(path: Path, kind: str | None = None) -> Iterator[Read]:
    """The rows of one file, in order: the place, the row, and its JSON text where the file has it.

    Args:
        path: the file; what follows the last dot but `.gz` and `.zst` says its kind.
        kind: the kind where the name doesn't say it: `.jsonl`.

    Raises:
        DataError: the file can't be read, or a row is none; with the place.
    """
    match _kind(path) if _kind(path) in KINDS else kind:
        case ".json":
            yield from _json(path)
        case ".csv" | ".tsv":
            yield from _csv(path, "\t" if _kind(path) == ".tsv" else ",")
        case ".parquet":
            yield from _parquet(path)
        case ".jsonl" | ".ndjson":
            yield from _json_lines(path)
        case _:
            raise DataError(f"{path}: unknown kind of data file", fix=f"use one of {', '.join(KINDS)}, .arrow, .txt")


def _kind(path: Path) -> str:
    name = path.with_suffix("") if path.suffix in PACKED else path
    return name.suffix.lower()


def _opened(path: Path) -> io.BufferedReader:
    """The file's bytes, unpacked as they are read."""
    try:
        if path.suffix == ".gz":
            return io.BufferedReader(gzip.GzipFile(path))  # by its path: it closes no file that it was given
        file = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    if path.suffix == ".zst":
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True))
    return file


def _unreadable(path: Path, reason: object) -> DataError:
    return DataError(
        f"cannot read the dataset file {path}: {reason}", fix="check dataset.* in the job, or make the file again"
    )


def _json_lines(path: Path) -> Iterator[Read]:
    for number, line in _lines(path):
        text = (line.removeprefix(_BOM) if number == 1 else line).strip()
        if not text:
            continue
        place = f"{path}:{number}"
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{place}: not JSON: {error}", fix=_hint(number, text)) from None
        if not isinstance(row, dict):
            raise DataError(f"{place}: a row is a JSON object, not {type(row).__name__}", fix=_hint(number, text))
        yield place, row, text


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The numbered lines. A file that its disk, mount or packing fails to give is a DataError."""
    with _opened(path) as file:
        try:
            yield from enumerate(file, start=1)
        except _UNREAD as error:
            raise _unreadable(path, getattr(error, "strerror", None) or error) from None


def _hint(number: int, text: bytes) -> str:
    if number == 1 and text.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the file is UTF-16: save it as UTF-8"
    if number == 1 and text.startswith(b"["):
        return "this looks like one JSON array: name the file .json, or write one object a line"
    return 'write one JSON object a line, such as {"prompt": "…", "answer": "…"}'


def _json(path: Path) -> Iterator[Read]:
    """A JSON array of objects, an object that holds one under a usual name, one row, or JSON lines under this name."""
    data = b"".join(line for _, line in _lines(path)).removeprefix(_BOM)
    try:
        rows = orjson.loads(data)
    except orjson.JSONDecodeError:
        yield from _json_lines(path)  # says which line is no JSON
        return
    if isinstance(rows, dict):  # a row may hold lists of its own (messages, choices): only these names wrap rows
        rows = next((rows[name] for name in _WRAPPERS if isinstance(rows.get(name), list)), [rows])
    if not isinstance(rows, list):
        raise DataError(f"{path}: it holds a {type(rows).__name__}, no rows", fix="write a JSON array of objects")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: a row is a JSON object, not {type(row).__name__}", fix="write objects")
        yield f"{path}:{number}", row, None


def _csv(path: Path, delimiter: str) -> Iterator[Read]:
    """All values are texts; a row with more or fewer of them than the header is refused."""
    with _opened(path) as file:
        lines = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), delimiter=delimiter, strict=True)
        try:
            header = next(lines, None)
            if header is None:
                return
            if doubled := {name for name in header if header.count(name) > 1}:
                raise DataError(f"{path}: several columns are named {', '.join(sorted(doubled))}", fix="rename them")
            for values in lines:
                if not values:
                    continue
                if len(values) != len(header):
                    raise DataError(
                        f"{path}:{lines.line_num}: {len(values)} values for {len(header)} columns",
                        fix="quote values that hold the delimiter or a line end",
                    )
                yield f"{path}:{lines.line_num}", dict(zip(header, values, strict=True)), None
        except csv.Error as error:
            raise DataError(f"{path}:{lines.line_num}: {error}", fix="save the file as CSV again") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: it is no UTF-8: {error}", fix="save the file as UTF-8") from None
        except _UNREAD as error:
            raise _unreadable(path, getattr(error, "strerror", None) or error) from None


def _parquet(path: Path) -> Iterator[Read]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"{path} needs the package `pyarrow`", fix=f"install it: {install('data')}") from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    yield f"{path}:{number}", _plain(row, f"{path}:{number}"), None
                    number += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, str(error).splitlines()[0]) from None


def _plain(value: Any, place: str) -> Any:
    """Values that JSON has no word for: decimals and times as text, images as data URIs; other bytes are refused."""
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):  # a column of images, as `datasets` writes it
        value = value["bytes"]
    if isinstance(value, dict):
        return {key: _plain(inner, place) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, place) for inner in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return image_of(value).uri
        except DataError as error:
            raise DataError(f"{place}: a column holds bytes: {error.message}", fix="drop that column") from None
    return value
