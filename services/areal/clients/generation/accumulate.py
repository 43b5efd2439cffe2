"""Joining what servers streamed into one answer, whichever servers and policies made it.

Pure. Promises token truth: a token once streamed is never changed or asked for again; each has the log-probability and
the policy that its server reported. A delta that can't be true (wrong lengths, an id outside the vocabulary, spans that
leave a token out) is refused whole.
"""

from collections.abc import Callable, Iterable
from enum import Enum, auto

import numpy as np

from areal.errors import InfraError
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal.values.generation import GenerationResult, Ids, Logprobs, Sampling, TokenSpan, in_vocabulary

_RESUBMIT = frozenset(
    {wire.END_REASON_ABORTED, wire.END_REASON_BELOW_FLOOR, wire.END_REASON_DRAINING, wire.END_REASON_ENGINE_LOST}
)


class Next(Enum):
    """What follows the end of an attempt."""

    FINISHED = auto()
    RESUBMIT = auto()  # prompt + tokens so far, with the budget that is left
    REFUSED = auto()  # never to be tried again as it is


class BadDelta(InfraError):
    """A server streamed what can't be true. Nothing of the delta was taken."""


class Accumulator:
    """The tokens of one answer so far."""

    def __init__(
        self,
        prompt_ids: Ids,
        sampling: Sampling,
        *,
        eos_ids: frozenset[int],
        vocab_size: int,
        decode: Callable[[list[int]], str] | None = None,
    ) -> None:
        self._prompt = prompt_ids.tobytes()
        self.prompt_tokens = len(prompt_ids)
        self.sampling = sampling
        self._vocab_size = vocab_size
        self._decode = decode
        self._end_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_ids)
        self._ids = bytearray()
        self._logprobs = bytearray()
        self._spans: list[TokenSpan] = []
        self._routes = bytearray()
        self._routed = True  # each token so far came with the experts of those before it
        self.finish_reason = ""
        self.matched = ""
        self.moved = 0  # tokens that it had when it last went on elsewhere

    @property
    def tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self._ids) // 4

    @property
    def remaining(self) -> int:
        """Tokens that may still be sampled."""
        return self.sampling.max_new_tokens - self.tokens

    def input_bytes(self) -> bytes:
        """Input of the next attempt: prompt and tokens so far, little-endian int32."""
        return self._prompt + bytes(self._ids)

    def since(self, start: int) -> tuple[Ids, Logprobs]:
        """Tokens from `start` on, and their log-probabilities `[tokens]`."""
        ids, logprobs = bytes(self._ids[4 * start :]), bytes(self._logprobs[4 * start :])
        return np.frombuffer(ids, dtype="<i4"), np.frombuffer(logprobs, dtype="<f4")

    def add(
        self, token_ids: bytes, logprobs: bytes, spans: Iterable[common.Span], routes: bytes = b"", route_bytes: int = 0
    ) -> int:
        """Append a delta; returns how many tokens it held. Raises BadDelta and takes nothing of a wrong one.

        Of `routes` the last rows are taken, those that no delta had: what a new attempt computes again of tokens that
        are there may be another policy's.
        """
        if not token_ids and not logprobs:
            return 0
        count, odd = divmod(len(token_ids), 4)
        if odd or len(logprobs) != len(token_ids):
            raise BadDelta(f"a delta has {len(token_ids)} bytes of ids and {len(logprobs)} of log-probabilities")
        if count > self.remaining:
            raise BadDelta(f"a delta has {count} tokens where {self.remaining} were left to sample")
        ids = np.frombuffer(token_ids, dtype="<i4")
        if not in_vocabulary(ids, self._vocab_size):
            raise BadDelta(f"a delta has a token id outside 0…{self._vocab_size - 1}")
        if not np.isfinite(np.frombuffer(logprobs, dtype="<f4")).all():
            raise BadDelta("a delta has a log-probability that is not finite")
        before = self.tokens
        added: list[TokenSpan] = []
        at = 0
        for span in spans:
            if span.start != at or span.end <= at or not span.policy_id:
                raise BadDelta(f"a delta's spans are not consecutive at token {at}")
            added.append(TokenSpan(before + span.start, before + span.end, span.policy_id, span.server_id))
            at = span.end
        if at != count:
            raise BadDelta(f"a delta's spans cover {at} of {count} tokens")
        lacking = (self.prompt_tokens + before + count - 1) * route_bytes - len(self._routes)
        if self._routed and routes and not 0 <= lacking <= len(routes):
            raise BadDelta(f"a delta has {len(routes)} bytes of routes where {lacking} were left")
        self._routed &= bool(routes)
        self._routes += routes[len(routes) - lacking :] if self._routed else b""
        self._ids += token_ids
        self._logprobs += logprobs
        for fresh in added:
            self._join(fresh)
        return count

    def _join(self, span: TokenSpan) -> None:
        last = self._spans[-1] if self._spans else None
        if last is not None and (last.policy_id, last.server_id) == (span.policy_id, span.server_id):
            self._spans[-1] = TokenSpan(last.start, span.end, span.policy_id, span.server_id)
        else:
            self._spans.append(span)

    def end(self, reason: wire.EndReason.ValueType, matched: str = "") -> Next:
        """An attempt ended, or its stream was lost (`END_REASON_ENGINE_LOST`). Decides what follows."""
        if reason in (wire.END_REASON_STOP, wire.END_REASON_LENGTH):
            self.finish_reason = "stop" if reason == wire.END_REASON_STOP else "length"
            self.matched = matched
            return Next.FINISHED
        if reason not in _RESUBMIT:
            return Next.REFUSED
        if self._at_end():  # the end was lost, not the token that caused it
            self.finish_reason = "stop"
            return Next.FINISHED
        if self.remaining <= 0:
            self.finish_reason = "length"
            return Next.FINISHED
        return Next.RESUBMIT

    def _at_end(self) -> bool:
        if not self._ids or self.tokens < self.sampling.min_new_tokens:
            return False
        if int.from_bytes(self._ids[-4:], "little") in self._end_ids:
            return True
        if not self.sampling.stop or self._decode is None:
            return False
        text = self._decode(np.frombuffer(bytes(self._ids), dtype="<i4").tolist())
        return any(stop in text for stop in self.sampling.stop)

    def result(self, finish_reason: str = "") -> GenerationResult:
        """All tokens so far as an answer."""
        return GenerationResult(
            np.frombuffer(bytes(self._ids), dtype="<i4"),
            np.frombuffer(bytes(self._logprobs), dtype="<f4"),
            tuple(self._spans),
            finish_reason or self.finish_reason,
            self.matched,
            routes=bytes(self._routes) if self._routed else b"",
        )
