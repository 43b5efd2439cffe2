"""Result of one episode: token sequences with their rewards.

Owns the rule of token truth on the workflow's side: a trained token (mask 1) has the log-probability and the policy
that an engine reported for it, and nothing else is trained.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Row
from dataclasses import dataclass, field, replace

import numpy as np

from areal.errors import DataError
from areal.image_shape import ImageShape
from areal.values.generation import GenerationResult, Ids, Logprobs, Mask, TokenSpan, as_ids
from areal.values.images import Image
from areal.values.policy import version_of


@dataclass(frozen=True)
class Sequence:
    """One token sequence. All arrays have one entry a token, prompt tokens included: `[tokens]`.

    `logprobs` is 0 and `loss_mask` 0 where a token was not sampled; spans cover the sampled tokens. The worker fills in
    `routes`, where the model has experts: a row of bytes for each token (`areal.values.routes`); and the `images` that
    the last answer was asked with.
    """

    input_ids: Ids
    logprobs: Logprobs
    loss_mask: Mask
    spans: tuple[TokenSpan, ...]
    reward: float
    finish_reason: str = "stop"
    routes: bytes = field(default=b"", repr=False)
    images: tuple[Image, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, prompt_ids: Row[int] | Ids, result: GenerationResult, reward: float) -> Sequence:
        """A prompt and one answer to it."""
        return Transcript(prompt_ids).sampled(result).sequence(reward)

    def masked(self) -> Sequence:
        """The same tokens, none of them trained."""
        return replace(self, loss_mask=np.zeros(len(self.input_ids), dtype="u1"))

    @property
    def versions(self) -> Ids:
        """The policy version of each token `[tokens]`; −1 where it was not sampled."""
        versions = np.full(len(self.input_ids), -1, dtype="<i4")
        for span in self.spans:
            versions[span.start : span.end] = version_of(span.policy_id)
        return versions


class Transcript:
    """A growing token sequence of texts given and tokens sampled: every later input is exactly the ids so far."""

    def __init__(self, prompt_ids: Row[int] | Ids) -> None:
        prompt = as_ids(prompt_ids)
        self._ids = [prompt]
        self._logprobs = [np.zeros(len(prompt), dtype="<f4")]
        self._mask = [np.zeros(len(prompt), dtype="u1")]
        self._spans: list[TokenSpan] = []
        self._length = len(prompt)
        self._finish_reason = "stop"

    def given(self, ids: Row[int] | Ids) -> Transcript:
        """Append tokens that no model sampled, such as feedback. They are never trained."""
        added = as_ids(ids)
        self._ids.append(added)
        self._logprobs.append(np.zeros(len(added), dtype="<f4"))
        self._mask.append(np.zeros(len(added), dtype="u1"))
        self._length += len(added)
        return self

    def sampled(self, result: GenerationResult) -> Transcript:
        """Append what an engine sampled after the ids so far."""
        self._ids.append(result.output_ids)
        self._logprobs.append(result.logprobs)
        self._mask.append(np.ones(len(result.output_ids), dtype="u1"))
        self._spans.extend(span.shifted(self._length) for span in result.spans)
        self._length += len(result.output_ids)
        self._finish_reason = result.finish_reason
        return self

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> Ids:
        """All token ids so far `[tokens]`."""
        return np.concatenate(self._ids) if len(self._ids) > 1 else self._ids[0]

    def sequence(self, reward: float) -> Sequence:
        """The sequence so far with its reward."""
        return Sequence(
            self.ids,
            np.concatenate(self._logprobs),
            np.concatenate(self._mask),
            tuple(self._spans),
            reward,
            self._finish_reason,
        )


FIGURE_NAMES = "by letters, digits and _ . -, beginning with a letter, 64 at most"
MOST_FIGURES = 64  # of one episode
_FIGURE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


def is_figure_name(name: object) -> bool:
    """Whether a figure can be called so: every place that shows it takes these letters."""
    return isinstance(name, str) and _FIGURE.fullmatch(name) is not None


@dataclass(frozen=True)
class Episode:
    """One or more sequences of one sample.

    `note` is recorded beside them, for people. `figures` are finite numbers by name: each step has their mean over its
    samples in metrics.jsonl, on the page and wherever figures go.
    """

    sequences: tuple[Sequence, ...]
    note: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    def __init__(
        self, sequences: Iterable[Sequence], note: str = "", figures: Mapping[str, float] | None = None
    ) -> None:
        object.__setattr__(self, "sequences", tuple(sequences))
        object.__setattr__(self, "note", note)
        object.__setattr__(self, "figures", dict(figures or {}))

    @property
    def reward(self) -> float:
        """Mean reward of the sequences: the sample's figure in logs, evaluation and filtering."""
        return sum(sequence.reward for sequence in self.sequences) / len(self.sequences)

    @property
    def is_masked(self) -> bool:
        """Whether none of its tokens is trained."""
        return not any(sequence.loss_mask.any() for sequence in self.sequences)

    @property
    def truncated(self) -> bool:
        """Whether any sequence ended by its budget."""
        return any(sequence.finish_reason != "stop" for sequence in self.sequences)


class RejectedError(DataError):
    """The sample is rejected, as if the workflow had returned None: nothing is wrong but this row."""


def check_episode(episode: Episode, *, vocab_size: int) -> None:
    """Refuse with DataError an episode that could not be trained; without any sampled token it is rejected.

    Whether its tokens are those that were sampled is `streamed.check_streamed`'s question.
    """
    if not isinstance(episode, Episode):
        raise DataError(
            f"a workflow returned {type(episode).__name__}, not an Episode", fix="return Episode([...]) or None"
        )
    if not episode.sequences:
        raise DataError("a workflow returned an Episode without sequences", fix="return None to reject a sample")
    _check_figures(episode.figures)
    for number, sequence in enumerate(episode.sequences):
        _check(sequence, f"sequence {number}", vocab_size)
    if not any(sequence.spans for sequence in episode.sequences):
        raise RejectedError("no token of the episode was sampled", fix="leave room for an answer in maxSampleTokens")


def check_images(episode: Episode, shape: ImageShape | None) -> None:
    """Reject an episode in which the model wrote a placeholder, which stands for no image."""
    if shape is None:
        return
    for sequence in episode.sequences:
        try:
            begins = shape.begins(sequence.input_ids, sequence.images)
        except DataError as error:
            raise RejectedError(error.message, fix=error.fix) from None
        if begins and begins[-1] + shape.tokens(sequence.images[-1]) == len(sequence.input_ids):
            raise RejectedError("a sequence ends with an image", fix="end it with an answer")


def _check_figures(figures: Mapping[str, float]) -> None:
    if len(figures) > MOST_FIGURES:
        raise DataError(f"an episode has {len(figures)} figures", fix=f"keep the {MOST_FIGURES} that matter")
    for name, value in figures.items():
        if not is_figure_name(name):
            raise DataError(f"an episode has a figure named {name!r:.80}", fix=f"name it {FIGURE_NAMES}")
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise DataError(f"the episode's figure {name} is {value!r:.80}", fix="give a finite number")


def _check(sequence: Sequence, what: str, vocab_size: int) -> None:
    tokens = len(sequence.input_ids)
    if not tokens or len(sequence.logprobs) != tokens or len(sequence.loss_mask) != tokens:
        lengths = f"{tokens} ids, {len(sequence.logprobs)} log-probabilities, {len(sequence.loss_mask)} mask entries"
        raise DataError(f"{what} has {lengths}", fix="give one entry a token; Sequence.of and Transcript do")
    if int(sequence.input_ids.min()) < 0 or int(sequence.input_ids.max()) >= vocab_size:
        raise DataError(f"{what} has a token id outside 0…{vocab_size - 1}", fix="use the model's own tokenizer")
    if not np.isfinite(sequence.reward):
        raise DataError(f"{what} has reward {sequence.reward}", fix="return a finite number from the reward")
    covered = np.zeros(tokens, dtype=bool)
    for span in sequence.spans:
        if not 0 <= span.start < span.end <= tokens:
            raise DataError(f"{what} has a span [{span.start}, {span.end}) outside its {tokens} tokens")
        if covered[span.start : span.end].any():
            raise DataError(f"{what} has two spans over token {span.start}", fix="keep the spans as they were answered")
        covered[span.start : span.end] = True
    trained = sequence.loss_mask.astype(bool)
    if (trained & ~covered).any():
        raise DataError(
            f"{what} trains tokens that no engine sampled", fix="set loss_mask 0 on every token without a span"
        )
    if not np.isfinite(sequence.logprobs).all():
        raise DataError(f"{what} has a log-probability that is not finite")
