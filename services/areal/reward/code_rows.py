"""The tests of a dataset's rows, looked at before a run: a row that could judge no program is named with its place.

Reads the first rows only, for most mistakes are in all rows; what is wrong with a later one is a fault of its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from areal.data import Snapshot
from areal.errors import ArealError, DataError
from areal.reward.judge.formats.registry import suite_of
from areal.spec.job import RLJob

_ROWS = 2000
_BYTES = 64 << 20  # of rows that are read, at most

Rows = Iterable[tuple[str, Mapping[str, Any], int]]
"""Where a row is, for people; the row; its length in bytes."""


def check_suites(job: RLJob, rows: Rows) -> None:
    """Raise DataError for the first row whose tests could judge no program, when programs are what the job scores."""
    if job.spec.reward.verifier != "code":
        return
    left = _BYTES
    for number, (place, row, size) in enumerate(rows):
        left -= size
        if number >= _ROWS or left < 0:
            return
        try:
            suite_of(row, job.spec.reward.programs.format)
        except ArealError as error:
            raise DataError(f"{place}: {error.message.removeprefix('row: ')}", fix=error.fix) from None


def rows_of_file(path: Path) -> Rows:
    """The rows of a file of JSON lines, as `check_suites` takes them. Lines without an object are others' business."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if isinstance(row, dict):
                yield f"{path}:{number}", row, len(line)


def rows_of_snapshot(directory: Path, split: str) -> Rows:
    """The rows of a prepared dataset, the same way; none when there is no such split."""
    if not directory.exists():
        return
    snapshot = Snapshot(directory)
    try:
        for index in range(min(len(snapshot), _ROWS)):
            line = snapshot.row_json(index)
            yield f"dataset.{split}, row {index + 1}", orjson.loads(line), len(line)
    finally:
        snapshot.close()
