"""Generation requests and results, as workflows ask and clients answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from areal.values.policy import version_of

if TYPE_CHECKING:
    from areal.values.images import Image

Ids: TypeAlias = "npt.NDArray[np.int32]"
Logprobs: TypeAlias = "npt.NDArray[np.float32]"
Mask: TypeAlias = "npt.NDArray[np.uint8]"
ROUTES = "routes"
"""Kind of an attachment of a sequence: for each token a row of bytes, the experts that it went to. The last token's row
is unknown, because nothing came after it."""
OnTokens: TypeAlias = Callable[["Ids", "Logprobs"], None]  # tokens that just came, and their log-probabilities


def route_digests(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """A number for each token's routes, [tokens] of [tokens, bytes]: what two journals are compared by."""
    weights = np.arange(1, rows.shape[1] + 1, dtype=np.uint32) * np.uint32(2654435761) | np.uint32(1)
    digests: npt.NDArray[np.uint32] = (rows * weights).sum(axis=1, dtype=np.uint32)
    return digests


def as_ids(ids: Sequence[int] | Ids) -> Ids:
    """Token ids as a contiguous little-endian int32 array `[tokens]`."""
    return np.ascontiguousarray(ids, dtype="<i4")


def in_vocabulary(ids: Ids, vocab_size: int) -> bool:
    """Whether every id is a token of the model. In one look at them: a negative id is a large unsigned one."""
    return int(ids.view("<u4").max(initial=0)) < vocab_size


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are off."""

    temperature: float = 1.0
    max_new_tokens: int = 256
    top_p: float = 1.0
    top_k: int = 0
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def greedy(self) -> Sampling:
        """The same with temperature 0 and no truncation, as evaluation uses it."""
        return replace(self, temperature=0.0, top_p=1.0, top_k=0)


@dataclass(frozen=True)
class TokenSpan:
    """Tokens `[start, end)` were made by one policy on one server."""

    start: int
    end: int
    policy_id: str
    server_id: str

    def shifted(self, by: int) -> TokenSpan:
        """The same tokens, counted from `by` tokens earlier."""
        return TokenSpan(self.start + by, self.end + by, self.policy_id, self.server_id)


@dataclass(frozen=True)
class GenerationRequest:
    """Continue `input_ids`. Without `sampling`, the job's own is taken; without `images`, those of the episode's prompt
    where ids stand for some."""

    input_ids: Sequence[int] | Ids
    sampling: Sampling | None = None
    images: tuple[Image, ...] = ()


PromptScore: TypeAlias = "tuple[float | None, tuple[int, float] | None]"
"""Of a token of a prompt: its log-probability, and the likeliest token in its place with its own; of the first none."""


@dataclass(frozen=True)
class GenerationResult:
    """New tokens with the log-probability and the policy of each. Spans count from the first new token.

    `finish_reason` is `stop` (an end token, included in `output_ids`, or a stop string) or `length`. `prompt_scores`
    are there where they were asked for, `routes` where the model has experts and an answer is to be trained: a row of
    bytes for each token before the last, of the prompt and of these (`areal.values.routes`).
    """

    output_ids: Ids  # [tokens]
    logprobs: Logprobs  # [tokens]
    spans: tuple[TokenSpan, ...] = field(default=())
    finish_reason: str = "stop"
    matched: str = ""
    prompt_scores: tuple[PromptScore, ...] = ()
    routes: bytes = field(default=b"", repr=False)

    @property
    def truncated(self) -> bool:
        """Whether the budget ended it, not the model."""
        return self.finish_reason != "stop"

    def copied(self) -> GenerationResult:
        """The same with arrays of its own, which nobody else can change."""
        ids, logprobs = self.output_ids.copy(), self.logprobs.copy()
        return replace(self, output_ids=ids, logprobs=logprobs)

    @property
    def versions(self) -> Ids:
        """The policy version of each new token `[tokens]`."""
        versions = np.full(len(self.output_ids), -1, dtype="<i4")
        for span in self.spans:
            versions[span.start : span.end] = version_of(span.policy_id)
        return versions
