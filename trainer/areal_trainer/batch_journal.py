"""Journal of the trained batches: the very columns that each step trained on, for the audit of tokens.

Training only hands over its arrays, which it never changes afterwards; packing and writing happen on the writer's
thread. Rank 0 only.
"""

from collections.abc import Iterator

import numpy as np
from areal.record.segment import FrameKind, Header
from areal.record.writer import RecordWriter
from areal.v1 import record_pb2 as record
from areal.values.generation import route_digests

from areal_trainer.data.batch import TokenBatch

CHUNK_TOKENS = 1 << 16  # of one frame, about: no group is cut in two
_PER_TOKEN = 17  # bytes of the columns below


class BatchJournal:
    """Queues every batch that one trainer trains, and says at its end that nothing is missing."""

    def __init__(self, writer: RecordWriter, fence: int, temperature: float) -> None:
        self._writer = writer
        self._fence = fence
        self._temperature = temperature

    def step(self, step: int, tokens: TokenBatch) -> None:
        """A batch was trained."""
        for first, end in _chunks(tokens):
            size = _PER_TOKEN * int(tokens.offsets[end] - tokens.offsets[first])
            self._writer.offer(size, lambda first=first, end=end: self._record(step, tokens, first, end))  # type: ignore[misc]

    def close(self) -> None:
        """Write what is queued, and that it was all."""
        self._writer.offer(0, lambda: (Header(FrameKind.CLOSED, tokens=self._writer.dropped), b""))
        self._writer.close()

    def _record(self, step: int, tokens: TokenBatch, first: int, end: int) -> tuple[Header, bytes]:
        """The sequences [first, end)."""
        inside = slice(int(tokens.offsets[first]), int(tokens.offsets[end]))
        groups = tokens.group_ids[first:end]
        made = record.TrainedBatch(
            step=step,
            fence=self._fence,
            groups=groups.astype("<u8").tobytes(),
            indices=tokens.sample_indices[first:end].astype("<u4").tobytes(),
            lengths=tokens.lengths[first:end].astype("<u4").tobytes(),
            token_ids=tokens.token_ids[inside].astype("<i4").tobytes(),
            logprobs=tokens.behaviour_logprobs[inside].astype("<f4").tobytes(),
            versions=tokens.versions[inside].astype("<i4").tobytes(),
            trained=tokens.trainable()[inside].astype("u1").tobytes(),
            temperature=self._temperature,
            routes=np.roll(route_digests(tokens.routes[inside]), 1).tobytes(),
        )
        count = inside.stop - inside.start
        header = Header(
            FrameKind.BATCH, int(groups[0]), index=self._fence, step=step, tokens=count, version=int(groups[-1])
        )
        return header, made.SerializeToString()


def _chunks(tokens: TokenBatch) -> Iterator[tuple[int, int]]:
    """Ranges of sequences that hold whole groups."""
    if not tokens.sequences:
        return
    starts = np.flatnonzero(np.diff(tokens.group_ids, prepend=tokens.group_ids[0] - 1))
    first = 0
    for end in [*starts[1:].tolist(), tokens.sequences]:
        if tokens.offsets[end] - tokens.offsets[first] >= CHUNK_TOKENS or end == tokens.sequences:
            yield first, end
            first = end
