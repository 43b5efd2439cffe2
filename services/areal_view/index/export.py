"""Export of recorded samples as JSON lines: whole text, token ids, log-probabilities, spans, verdict, for scripts."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from areal.v1 import record_pb2 as record

from areal_view.index.record_index import RecordIndex, SampleRow

MOST = 100_000
"""Samples of one export: more are better read from the segments."""


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
            "score": verdict.score,
            "status": verdict.status,
            "method": verdict.method,
            "detail": verdict.detail,
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
        "tokenIds": _column(sequence.token_ids, "<i4"),
        "logprobs": _column(sequence.logprobs, "<f4"),
        "lossMask": _column(sequence.loss_mask, "u1"),
        "reward": sequence.reward,
        "finishReason": sequence.finish_reason,
        "spans": [
            {"start": span.start, "end": span.end, "policy": span.policy_id, "server": span.server_id}
            for span in sequence.spans
        ],
    }


def _column(raw: bytes, dtype: str) -> list[Any]:
    size = np.dtype(dtype).itemsize
    found: list[Any] = np.frombuffer(raw[: len(raw) // size * size], dtype).tolist()
    return found
