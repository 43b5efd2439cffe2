"""Export of recorded samples as ATIF (Agent Trajectory Interchange Format, v1.8), a trajectory a line.

A sequence is a trajectory; those of one sample share its session. What was fed is a step of the user, what was sampled
in one go a step of the agent, with token ids and log-probabilities. Messages are the text of the tokens, with those of
the chat template: a recording knows no roles.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from areal import __version__
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record

from areal_view.index.record_index import RecordIndex, SampleRow
from areal_view.index.sample_text import array_of, pieces_of

VERSION = "ATIF-v1.8"


def lines(index: RecordIndex, rows: Sequence[SampleRow], run: str) -> Iterator[bytes]:
    """A line a sequence; failures without one are left out."""
    for row in rows:
        made = index.sample(row.place)
        if made is not None:
            for number in range(len(made.sample.sequences)):
                yield orjson.dumps(trajectory(made, number, run)) + b"\n"


def trajectory(made: record.SampleRecord, number: int, run: str) -> dict[str, Any]:
    """One sequence of a sample."""
    key, sequence = made.sample.key, made.sample.sequences[number]
    steps = list(_steps(made, number))
    sampled = [step["metrics"]["completion_tokens"] for step in steps if step["source"] == "agent"]
    prompts = [step["metrics"]["prompt_tokens"] for step in steps if step["source"] == "agent"]
    return {
        "schema_version": VERSION,
        "session_id": f"{run}/{key.group}.{key.index}",
        "trajectory_id": f"{key.group}.{key.index}.{key.attempt}.{number}",
        "agent": {"name": "areal", "version": __version__, "model_name": run},
        "steps": steps,
        "notes": "messages are the text of the tokens, with those of the chat template",
        "final_metrics": {
            "total_prompt_tokens": sum(prompts),
            "total_completion_tokens": sum(sampled),
            "total_steps": len(steps),
        },
        "extra": {
            "reward": sequence.reward,
            "sample_reward": made.reward,
            "outcome": made.outcome,
            "finish_reason": sequence.finish_reason,
            "evaluation": made.evaluation_id,
            "verdict": {"status": made.sample.verdict.status, "method": made.sample.verdict.method},
        },
    }


def _steps(made: record.SampleRecord, number: int) -> Iterator[dict[str, Any]]:
    sequence = made.sample.sequences[number]
    ids = array_of(sequence.token_ids, "<i4").tolist()
    logprobs = array_of(sequence.logprobs, "<f4").tolist()
    pieces = pieces_of(made, number)
    at, count = 0, 0
    for start, end, policy in _turns(sequence, len(ids)):
        for source, low, high in (("user", at, start), ("agent", start, end)):
            if high <= low:
                continue
            count += 1
            step: dict[str, Any] = {"step_id": count, "source": source, "message": _text(pieces[low:high])}
            if source == "agent":
                step |= {
                    "timestamp": datetime.fromtimestamp(made.made_at, UTC).isoformat(),
                    "model_name": policy,
                    "metrics": {
                        "prompt_tokens": low, "completion_tokens": high - low,
                        "completion_token_ids": ids[low:high], "logprobs": logprobs[low:high],
                    },
                }  # fmt: skip
            yield step
        at = end
    if at < len(ids):
        yield {"step_id": count + 1, "source": "user", "message": _text(pieces[at:])}


def _turns(sequence: common.TokenSequence, length: int) -> Iterator[tuple[int, int, str]]:
    """Sampled parts; spans that touch are one, which several policies made."""
    begun: tuple[int, int, str] | None = None
    for span in sorted(sequence.spans, key=lambda span: span.start):
        start, end = min(span.start, length), min(span.end, length)
        if begun is not None and begun[1] >= start:
            begun = (begun[0], max(begun[1], end), span.policy_id)
            continue
        if begun is not None:
            yield begun
        begun = (start, end, span.policy_id)
    if begun is not None:
        yield begun


def _text(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace")
