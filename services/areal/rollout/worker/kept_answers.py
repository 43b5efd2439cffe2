"""LRU cache of the answers of failed tries: the next try of a sample takes them up instead of sampling them again.

An infrastructure fault is the likelier the longer an episode is. Were its answers sampled anew, by an engine that keeps
no seeds, tries would be repeated until a short one got through, and long answers would be missing from what is trained.
An answer is taken up where the same seed asks for it with the same input and sampling, and it is young enough.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np

from areal.values.generation import GenerationResult, Ids, Sampling
from areal.values.images import Image
from areal.values.policy import version_of

MOST_TOKENS = 8 << 20  # of all kept tries, inputs included: 64 MiB


@dataclass(frozen=True, eq=False)
class DrawnAnswer:
    """One whole answer, by what it was asked with."""

    seed: int
    input_ids: Ids
    sampling: Sampling
    result: GenerationResult
    images: tuple[Image, ...] = ()

    @property
    def oldest_version(self) -> int:
        """Of any token of it."""
        return min((version_of(span.policy_id) for span in self.result.spans), default=-1)


class EarlierTry:
    """What one failed try of a sample drew. `attempt` is what its servers know it by."""

    def __init__(self, attempt: int, drawn: Iterable[DrawnAnswer]) -> None:
        self.attempt = attempt
        self._drawn = {answer.seed: answer for answer in drawn}
        self.sampled = sum(len(answer.result.output_ids) for answer in self._drawn.values())  # its inputs don't count

    @property
    def tokens(self) -> int:
        """Ids that it keeps in memory; of routes as many as take their place."""
        return sum(
            len(one.input_ids) + len(one.result.output_ids) + len(one.result.routes) // 8
            for one in self._drawn.values()
        )

    def with_answers(self, drawn: Iterable[DrawnAnswer]) -> "EarlierTry":
        """The rest of this try, and these answers."""
        return EarlierTry(self.attempt, [*self._drawn.values(), *drawn])

    def take(
        self, seed: int, ids: Ids, sampling: Sampling, floor: int, images: tuple[Image, ...] = ()
    ) -> DrawnAnswer | None:
        """The answer to this question, once; None when there is none, or it is older than `floor`."""
        answer = self._drawn.get(seed)
        if answer is None or answer.sampling != sampling or answer.oldest_version < floor:
            return None
        if not np.array_equal(answer.input_ids, ids) or answer.images != images:
            return None
        return self._drawn.pop(seed)


class KeptAnswers:
    """The failed tries of one worker's samples, the oldest dropped beyond `most_tokens`."""

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._tries: OrderedDict[Hashable, EarlierTry] = OrderedDict()
        self._tokens = 0

    @property
    def sampled(self) -> int:
        """Tokens of all kept answers, without their inputs."""
        return sum(kept.sampled for kept in self._tries.values())

    def keep(self, sample: Hashable, failed: EarlierTry) -> None:
        """A try of this sample failed."""
        self.take(sample)
        if not failed.tokens:
            return
        self._tries[sample] = failed
        self._tokens += failed.tokens
        while self._tokens > self._most_tokens:
            _, oldest = self._tries.popitem(last=False)
            self._tokens -= oldest.tokens

    def take(self, sample: Hashable) -> EarlierTry | None:
        """What the last failed try of this sample drew; it is the caller's from now on."""
        kept = self._tries.pop(sample, None)
        if kept is not None:
            self._tokens -= kept.tokens
        return kept
