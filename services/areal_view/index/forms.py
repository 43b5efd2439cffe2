"""Export forms of recorded samples: JSON lines, ATIF, Parquet; each as chunks of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from areal_view.index import atif, export, parquet
from areal_view.index.record_index import RecordIndex, SampleRow

FORMS: Mapping[str, str] = {
    "jsonl": "application/x-ndjson",
    "atif": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
"""Form → its media type. An ATIF file has one trajectory a line."""


def written(form: str, index: RecordIndex, rows: Sequence[SampleRow], run: str) -> Iterator[bytes]:
    """The samples in a form. Raises ConfigError when that form needs what is not installed."""
    match form:
        case "atif":
            return atif.lines(index, rows, run)
        case "parquet":
            return parquet.chunks(export.samples(index, rows))
        case _:
            return export.lines(index, rows)
