"""Append-only files of checksummed JSON lines: what the journal and the evidence are written in.

Owns durability and damage: an append returns after fsync; a line that a crash tore is found by its checksum. A line is
a JSON object whose last field, `xxh3`, covers the rest of it. Never rewrites or truncates.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import xxhash

from areal import files
from areal.errors import InfraError

SUFFIX_BYTES = len(b',"xxh3":"0123456789abcdef"}')

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordLine:
    """One line of a file; `record` is None when it is damaged."""

    number: int  # from 1
    record: Record | None


def pack(record: Record) -> bytes:
    """The line of a record that has at least one field."""
    body = orjson.dumps(record)
    return body[:-1] + b',"xxh3":"%016x"}\n' % xxhash.xxh3_64_intdigest(body)


def unpack(line: bytes) -> Record | None:
    """The record of a line without its newline, or None when it was damaged."""
    body = line[:-SUFFIX_BYTES] + b"}"
    if line[-SUFFIX_BYTES:] != b',"xxh3":"%016x"}' % xxhash.xxh3_64_intdigest(body):
        return None
    try:
        record = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def read_lines(path: Path) -> list[RecordLine]:
    """All lines of a file, damaged ones included; none when there is no file."""
    lines = files.read_lines(path)
    return [RecordLine(number, unpack(line)) for number, line in enumerate([*lines.whole, lines.torn], 1) if line]


class LineWriter:
    """Appends records to one file. After a failed write it refuses further ones: what is on disk is then unknown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            new = not path.exists()
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            if new:
                files.sync_directory(path.parent)
        except OSError as error:
            raise InfraError(f"can't open {path}: {error.strerror}", fix="check the run's volume") from error
        self._broken = False
        # A predecessor may have died inside a line: begin on a fresh one.
        self._lead = b"" if files.ends_whole(path) else b"\n"

    def append(self, records: Sequence[Record], *, sync: bool = True) -> None:
        """Writes all records, then waits until they are on disk."""
        if self._broken:
            raise InfraError(f"{self.path} failed before", fix="restart this role: it reads the file again")
        data = self._lead + b"".join(map(pack, records))
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(28, "only a part was written")
            if sync:
                os.fsync(self._file)
        except OSError as error:
            self._broken = True
            raise InfraError(
                f"can't write {self.path}: {error.strerror}",
                fix="free space on the run's volume, then restart this role",
            ) from error
        self._lead = b""

    def close(self) -> None:
        """Gives the file back. Everything appended is already on disk."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._broken = True
