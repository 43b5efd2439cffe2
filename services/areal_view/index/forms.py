"""Export forms of recorded samples: JSON lines, ATIF, Parquet; each as chunks of a file."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from areal.distribution import install
from areal.errors import ConfigError

from areal_view.index import atif, export
from areal_view.index.record_index import RecordIndex, SampleRow

FORMS: Mapping[str, str] = {
    "jsonl": "application/x-ndjson",
    "atif": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
"""Form → its media type. An ATIF file has one trajectory a line."""
_GROUP = 1_000  # rows of a row group
_CHUNK = 1 << 20


def written(form: str, index: RecordIndex, rows: Sequence[SampleRow], run: str) -> Iterator[bytes]:
    """The samples in a form. Raises ConfigError when that form needs what is not installed."""
    match form:
        case "atif":
            return atif.lines(index, rows, run)
        case "parquet":
            return _parquet(export.samples(index, rows))
        case _:
            return export.lines(index, rows)


def _parquet(samples: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """A Parquet file of what `export.samples` gives. Raises ConfigError where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise ConfigError("Parquet needs pyarrow, which is not installed", fix=f"`{install('data')}`") from None
    schema = _schema(pyarrow)

    def made() -> Iterator[bytes]:
        with tempfile.TemporaryFile() as file:
            with ParquetWriter(file, schema) as writer:
                rows = iter(samples)
                while part := list(islice(rows, _GROUP)):
                    writer.write_table(pyarrow.Table.from_pylist(part, schema))
            file.seek(0)
            while chunk := file.read(_CHUNK):
                yield chunk

    return made()


def _schema(pa: Any) -> Any:
    text, figure = pa.string(), pa.float64()
    span = pa.struct([("start", pa.uint32()), ("end", pa.uint32()), ("policy", text), ("server", text)])
    sequence = pa.struct([
        ("text", text), ("tokenIds", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float32())),
        ("lossMask", pa.list_(pa.uint8())), ("reward", figure), ("finishReason", text), ("spans", pa.list_(span)),
    ])  # fmt: skip
    verdict = pa.struct([
        ("score", figure), ("status", text), ("method", text), ("detail", text), ("figures", pa.map_(text, figure)),
    ])  # fmt: skip
    return pa.schema([
        ("group", pa.uint64()), ("index", pa.uint32()), ("attempt", pa.uint32()), ("evaluation", text),
        ("outcome", text), ("reward", figure), ("worker", text), ("madeAt", figure), ("xxh3", text),
        ("note", text), ("expected", text),
        ("verdict", verdict), ("fault", pa.struct([("message", text), ("traceback", text)])),
        ("sequences", pa.list_(sequence)),
    ])  # fmt: skip
