"""Export of recorded samples as JSON lines: whole text, token ids, log-probabilities, spans, verdict, for scripts."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from areal.v1 import record_pb2 as record

from areal_view.index.record_index import RecordIndex, SampleRow
from areal_view.index.sample_text import array_of

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
