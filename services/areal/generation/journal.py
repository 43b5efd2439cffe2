"""Journal of a generation server: every request as the engine was fed it and as its tokens went to the client.

Owns what a GenerationRecord says. It is one of the records that the audit of tokens compares: nothing that a run does
depends on it. On the server's loop it only queues; packing and writing happen on the writer's thread.
"""

from collections.abc import Sequence

import numpy as np

from areal.record.segment import FrameKind, Header
from areal.record.writer import RecordWriter
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal.v1 import record_pb2 as record
from areal.values.generation import route_digests

_PER_TOKEN = 16  # bytes in memory until it is written, about


class SampleJournal:
    """Queues the records of one server's process, and says at its end that nothing is missing."""

    def __init__(self, writer: RecordWriter, server_id: str) -> None:
        self._writer = writer
        self._server_id = server_id

    def ended(
        self,
        request_id: str,
        key: common.SampleKey | None,
        fed: Sequence[int],
        told: Sequence[wire.GenerateDelta],
        temperature: float,
        end: wire.EndReason.ValueType,
    ) -> None:
        """A request is over: what it was fed and all that was told of it, which nobody changes any more."""
        size = _PER_TOKEN * len(fed) + sum(_PER_TOKEN * len(delta.token_ids) // 4 + len(delta.routes) for delta in told)

        def make() -> tuple[Header, bytes]:
            made = record.GenerationRecord(
                request_id=request_id,
                key=key,
                server_id=self._server_id,
                fed=np.asarray(fed, "<i4").tobytes(),
                token_ids=b"".join(delta.token_ids for delta in told),
                logprobs=b"".join(delta.logprobs for delta in told),
                spans=_joined(told),
                temperature=temperature,
                end=end,
                routes=b"".join(_routes(delta) for delta in told),
            )
            group, index = (key.group, key.index) if key is not None else (0, 0)
            header = Header(
                FrameKind.GENERATION, group, index, step=int(key is not None), tokens=len(made.token_ids) // 4
            )
            return header, made.SerializeToString()

        self._writer.offer(size, make)

    def close(self) -> None:
        """Write what is queued, and that it was all."""
        self._writer.offer(0, lambda: (Header(FrameKind.CLOSED, tokens=self._writer.dropped), b""))
        self._writer.close()


def _routes(delta: wire.GenerateDelta) -> bytes:
    """Digests of the experts of the token before each of a delta's; it may have those of the prompt, too."""
    if not delta.routes:
        return b""
    rows = np.frombuffer(delta.routes, np.uint8).reshape(-1, delta.route_bytes)
    return route_digests(rows[-(len(delta.token_ids) // 4) :]).tobytes()


def _joined(told: Sequence[wire.GenerateDelta]) -> list[common.Span]:
    spans: list[common.Span] = []
    at = 0
    for delta in told:
        for span in delta.spans:
            if spans and (spans[-1].policy_id, spans[-1].server_id) == (span.policy_id, span.server_id):
                spans[-1].end = at + span.end
            else:
                spans.append(
                    common.Span(
                        start=at + span.start, end=at + span.end, policy_id=span.policy_id, server_id=span.server_id
                    )
                )
        at += len(delta.token_ids) // 4
    return spans
