"""JSON lines: one object a line, blank lines skipped, text kept exactly as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from areal.data.source import JsonlSource
from areal.errors import DataError

_BOM = b"\xef\xbb\xbf"


def read(source: JsonlSource) -> Iterator[tuple[str, dict[str, Any], bytes | None]]:
    """Yields the rows of the file with `file:line` as their place."""
    for number, line in _lines(source):
        text = (line.removeprefix(_BOM) if number == 1 else line).strip()
        if not text:
            continue
        place = f"{source.path}:{number}"
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{place}: not JSON: {error}", fix=_hint(number, text)) from None
        if not isinstance(row, dict):
            raise DataError(
                f"{place}: a row is a JSON object, not {type(row).__name__}",
                fix=_hint(number, text),
            )
        yield place, row, text


def _lines(source: JsonlSource) -> Iterator[tuple[int, bytes]]:
    """The numbered lines. A file that can't be opened, or that its disk or mount fails to read on, is a DataError."""
    try:
        with source.path.open("rb") as file:
            yield from enumerate(file, start=1)
    except OSError as error:
        raise DataError(
            f"cannot read the dataset file {source.path}: {error.strerror}",
            fix="check dataset.*.jsonl in the job, or make the file",
        ) from None


def _hint(number: int, text: bytes) -> str:
    if number == 1 and text.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the file is UTF-16: save it as UTF-8"
    if number == 1 and text.startswith(b"["):
        return "this looks like one JSON array; write one object a line (jq -c '.[]' file.json > file.jsonl)"
    return 'write one JSON object a line, such as {"prompt": "…", "answer": "…"}'
