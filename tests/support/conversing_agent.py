"""A generation server that answers a prompt's text with a text, over the real protocol, and journals what it did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal.values.policy import version_of
from areal.workflow.tokenizer import Tokenizer
from areal_view.index.oracle import JournalRequest
from support.scripted_agent import Running, ScriptedAgent, logprob_at

Answer = Callable[[str], str]


@dataclass
class Journaled:
    """One request: what was fed, what was made of it so far."""

    start: wire.GenerateStart
    answer: list[int]
    made: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    whole: bool = False

    def sampled(self) -> JournalRequest:
        """As the audit of tokens reads it."""
        return JournalRequest(
            self.start.request_id,
            self.start.key.attempt,
            np.frombuffer(self.start.token_ids, "<i4"),
            np.array(self.made, np.int32),
            np.array(self.logprobs, np.float32),
            np.array(self.versions, np.int32),
            self.start.sampling.temperature,
            self.whole,
        )


@dataclass(eq=False)
class ConversingAgent(ScriptedAgent):
    """`answer` is told the whole prompt as text. A token's log-probability depends on its seed and place."""

    tokenizer: Tokenizer | None = None
    answer: Answer = lambda prompt: ""
    journal: dict[str, Journaled] = field(default_factory=dict)

    @property
    def prompts(self) -> list[str]:
        """The text of every prompt so far."""
        return [self._text(start) for start in self.starts]

    def _begin(self, start: wire.GenerateStart, out: asyncio.Queue[wire.GenerateEvent]) -> None:
        assert self.tokenizer is not None
        (end,) = self.tokenizer.eos_ids
        prompt = self._text(start)
        self.journal[start.request_id] = Journaled(start, [*self.tokenizer.encode(self.answer(prompt)), end])
        super()._begin(start, out)

    def _make(self, request: Running, tokens: int) -> None:
        kept = self.journal[request.start.request_id]
        begun = len(kept.made)
        count = min(tokens, request.left, len(kept.answer) - begun)
        ids = kept.answer[begun : begun + count]
        logprobs = [logprob_at(request.start.sampling.seed, request.position + place) for place in range(count)]
        request.position += count
        request.left -= count
        kept.made += ids
        kept.logprobs += logprobs
        kept.versions += [version_of(self.policy_id)] * count
        delta = wire.GenerateDelta(
            token_ids=np.asarray(ids, "<i4").tobytes(),
            logprobs=np.asarray(logprobs, "<f4").tobytes(),
            spans=[common.Span(start=0, end=count, policy_id=self.policy_id, server_id=self.server_id)],
        )
        request.out.put_nowait(wire.GenerateEvent(request_id=request.start.request_id, delta=delta))
        if len(kept.made) == len(kept.answer):
            kept.whole = True
            self._end(request.start.request_id, request, wire.END_REASON_STOP)
        elif request.left <= 0:
            kept.whole = True
            self._end(request.start.request_id, request, wire.END_REASON_LENGTH)

    def _text(self, start: wire.GenerateStart) -> str:
        assert self.tokenizer is not None
        return self.tokenizer.decode(np.frombuffer(start.token_ids, "<i4"), skip_special=False)
