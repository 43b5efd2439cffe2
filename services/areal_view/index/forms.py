"""Export forms of recorded samples: JSON lines, ATIF, Parquet; each as chunks of a file."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson
from areal.distribution import install
from areal.errors import ConfigError
from areal.v1 import record_pb2 as record
from areal.yaml_file.table import read_table

from areal_view.index import atif
from areal_view.index.record_index import RecordIndex, SampleRow
from areal_view.index.sample_text import array_of

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
            return _parquet(samples(index, rows))
        case _:
            return lines(index, rows)


def _parquet(samples: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """A Parquet file of what `samples` gives. Raises ConfigError where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise ConfigError("Parquet needs pyarrow, which is not installed", fix=f"`{install('data')}`") from None
    schema = pyarrow.schema(_arrow(pyarrow, read_table("areal_view.index", "parquet.yaml")))

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


def _arrow(pa: Any, told: Any) -> Any:
    """A type of the table as Arrow has it."""
    if isinstance(told, list):
        return pa.list_(_arrow(pa, told[0]))
    if isinstance(told, dict):
        return pa.struct([(name, _arrow(pa, field)) for name, field in told.items()])
    return pa.map_(pa.string(), pa.float64()) if told == "figures" else getattr(pa, told)()


# ---- Export of recorded samples as JSON lines: whole text, token ids, log-probabilities, spans, verdict, for scripts


MOST = 100_000  # Samples of one export: more are better read from the segments


def lines(index: RecordIndex, rows: Sequence[SampleRow]) -> Iterator[bytes]:
    """A line a sample; those that retention has deleted meanwhile are left out."""
    for one in samples(index, rows):
        yield orjson.dumps(one) + b"\n"


def samples(index: RecordIndex, rows: Sequence[SampleRow]) -> Iterator[dict[str, Any]]:
    """The same as dictionaries."""
    for row in rows:
        made = index.sample(row.place)
        if made is not None:
            yield _sample(row, made)


def _sample(row: SampleRow, made: record.SampleRecord) -> dict[str, Any]:
    verdict, fault = made.sample.verdict, made.fault
    return {
        "group": row.group,
        "index": row.index,
        "attempt": made.sample.key.attempt,
        "evaluation": made.evaluation_id,
        "outcome": made.outcome,
        "reward": made.reward,
        "worker": made.sample.worker_id,
        "madeAt": made.made_at,
        "xxh3": f"{made.xxh3:016x}",
        "note": made.note,
        "expected": made.expected,
        "verdict": {
            **{name: getattr(verdict, name) for name in ("score", "status", "method", "detail")},
            "figures": dict(verdict.figures),
        },
        "fault": {"message": fault.message, "traceback": fault.traceback} if fault.message else None,
        "sequences": [_sequence(made, place) for place in range(len(made.sample.sequences))],
    }


def _sequence(made: record.SampleRecord, place: int) -> dict[str, Any]:
    sequence = made.sample.sequences[place]
    text = made.texts[place].text if place < len(made.texts) else b""
    return {
        "text": text.decode("utf-8", "replace"),
        "tokenIds": array_of(sequence.token_ids, "<i4").tolist(),
        "logprobs": array_of(sequence.logprobs, "<f4").tolist(),
        "lossMask": array_of(sequence.loss_mask, "u1").tolist(),
        "reward": sequence.reward,
        "finishReason": sequence.finish_reason,
        "spans": [
            {"start": span.start, "end": span.end, "policy": span.policy_id, "server": span.server_id}
            for span in sequence.spans
        ],
    }
