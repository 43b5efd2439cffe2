"""The columns of one training batch: ragged by sequence, one entry a token.

Owns the meaning of each column. A log-probability belongs to the token it is listed with (the model predicts it from
the tokens before), and so do its mask and version: nothing is shifted here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from areal.errors import DataError
from areal.image_shape import ImageShape
from areal.v1 import common_pb2 as common
from areal.values.generation import ROUTES
from areal.values.images import IMAGE, Image
from areal.values.policy import version_of
from areal.values.routes import MISSING
from numpy.typing import NDArray

NO_VERSION = -1  # of a token that no policy made
VERDICT = "S24"  # a verifier's word, as the longest that one has


@dataclass(frozen=True)
class TokenBatch:
    """S sequences of T tokens in all. Sequence s owns the entries [offsets[s], offsets[s+1])."""

    token_ids: NDArray[np.int64]  # [T]
    behaviour_logprobs: NDArray[np.float32]  # [T]
    loss_mask: NDArray[np.bool_]  # [T]
    versions: NDArray[np.int64]  # [T], NO_VERSION where not sampled
    offsets: NDArray[np.int64]  # [S+1]
    group_ids: NDArray[np.int64]  # [S]
    sample_indices: NDArray[np.int64]  # [S]
    rewards: NDArray[np.float64]  # [S]
    truncated: NDArray[np.bool_]  # [S], cut by the limit of its length
    verdicts: NDArray[np.bytes_] = field(
        default_factory=lambda: np.zeros(0, VERDICT)
    )  # [S], or [0] where there are none
    routes: NDArray[np.uint8] = field(
        default_factory=lambda: np.zeros((0, 0), np.uint8)
    )  # [T, bytes]: the experts that each token went to where its answer was sampled; [0, 0] where none are known
    image_positions: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((0, 3), np.int64)
    )  # [T, 3]: in time, down and across (`ImageShape.positions`); [0, 3] where no sequence has an image
    image_places: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros((0, 2), np.int64)
    )  # [I, 2]: the first token of each image in the columns, rising, and which of the files it is
    image_files: NDArray[np.uint8] = field(
        default_factory=lambda: np.zeros(0, np.uint8)
    )  # one after another, each once
    image_ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # of each file

    @property
    def verdict_words(self) -> NDArray[np.str_]:
        """[S]: the verifier's word for each answer, empty where it gave none."""
        words: NDArray[np.str_] = self.verdicts.astype(np.str_)
        return words if len(words) else np.full(self.sequences, "")

    @property
    def sequences(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def sequence_of(self) -> NDArray[np.int64]:
        """[T]: which sequence each token belongs to."""
        return np.repeat(np.arange(self.sequences, dtype=np.int64), self.lengths)

    @property
    def sample_of(self) -> NDArray[np.int64]:
        """[S]: a dense number for each sample (group, index): the sequences of one episode share it."""
        pairs = np.stack([self.group_ids, self.sample_indices], axis=1)
        dense: NDArray[np.int64] = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        return dense

    @property
    def turns(self) -> NDArray[np.int64]:
        """[T]: a number for each stretch of tokens that the policy made, and that of the turn before between them.

        Two answers with nothing between them are one turn.
        """
        made = self.versions != NO_VERSION
        begins = made & ~np.concatenate([[False], made[:-1]])
        begins[self.offsets[:-1][self.lengths > 0]] = True
        turns: NDArray[np.int64] = np.cumsum(begins)
        return turns

    def trainable(self) -> NDArray[np.bool_]:
        """[T]: the tokens a gradient can reach: masked in, and not first (nothing predicts a first token)."""
        mask = self.loss_mask.copy()
        mask[self.offsets[:-1][self.lengths > 0]] = False
        return mask

    def images_of(self, first: int, end: int) -> tuple[Image, ...]:
        """Images that begin within these tokens, in order."""
        low, high = np.searchsorted(self.image_places[:, 0], (first, end))
        files = [(int(self.image_ends[file - 1]) if file else 0, self.image_ends[file])
                 for file in self.image_places[low:high, 1].tolist()]  # fmt: skip
        return tuple(Image(self.image_files[begin:behind].tobytes()) for begin, behind in files)

    def unrouted(self) -> float:
        """Share of the trainable tokens of which the experts that sampled them aren't known."""
        before = np.flatnonzero(self.trainable()) - 1
        known = (self.routes[before] != MISSING).any(axis=1) if len(self.routes) else np.zeros(len(before), np.bool_)
        return float(1 - known.mean()) if len(before) else 0.0

    def has_signal(self) -> NDArray[np.bool_]:
        """[S]: the sequences with a token that a gradient can reach; an answer cut at a deadline has none."""
        signal = np.zeros(self.sequences, np.bool_)
        np.logical_or.at(signal, self.sequence_of, self.trainable())
        return signal

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """All columns by name, for the wire between ranks."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class AdvantageBatch:
    """What a recipe's `compute_advantages(batch)` is given: one step's sequences, every array read-only.

    Sequence s owns the entries [offsets[s], offsets[s+1]) of the arrays by token.
    """

    rewards: NDArray[np.float64]  # [S]
    counted: NDArray[np.bool_]  # [S], False where no token is trained: its reward belongs into no mean
    group_ids: NDArray[np.int64]  # [S]
    sample_indices: NDArray[np.int64]  # [S], within the group; the sequences of one episode share it
    truncated: NDArray[np.bool_]  # [S], cut by the limit of its length
    verdicts: NDArray[np.str_]  # [S], the verifier's word (EQUAL, WRONG_ANSWER, …); empty where it gave none
    offsets: NDArray[np.int64]  # [S+1]
    token_ids: NDArray[np.int64]  # [T]
    loss_mask: NDArray[np.bool_]  # [T]
    behaviour_logprobs: NDArray[np.float32]  # [T]
    versions: NDArray[np.int64]  # [T], NO_VERSION where not sampled
    values: NDArray[np.float64] | None = None  # [T], the critic's, of the state before the token; None without one
    columns: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)  # of the recipe's own stages, by name
    figures: dict[str, float] = field(default_factory=dict)  # to write into: numbers that the step shows by name

    @classmethod
    def of(
        cls,
        tokens: TokenBatch,
        counted: NDArray[np.bool_],
        values: NDArray[np.float64] | None = None,
        own: Mapping[str, NDArray[np.generic]] | None = None,
    ) -> "AdvantageBatch":
        """A view of `tokens` that can't change it."""
        names = {field.name for field in fields(cls)} - {"counted", "values", "columns", "verdicts", "figures"}
        arrays: dict[str, Any] = {name: getattr(tokens, name).view() for name in names}
        arrays["counted"] = counted.view()
        arrays["verdicts"] = tokens.verdict_words
        if values is not None:
            arrays["values"] = values.view()
        for array in arrays.values():
            array.flags.writeable = False
        return cls(**arrays, columns=dict(own or {}))


def unsampled(
    ids: NDArray[np.int64], lengths: Sequence[int], groups: Sequence[int], mask: NDArray[np.bool_] | None = None
) -> TokenBatch:
    """The columns of sequences that no policy made, one after another in `ids`.

    What only sampled tokens have is empty in them. Without a `mask` all tokens are trained.
    """
    return TokenBatch(
        token_ids=ids,
        behaviour_logprobs=np.zeros(len(ids), np.float32),
        loss_mask=np.ones(len(ids), np.bool_) if mask is None else mask,
        versions=np.full(len(ids), NO_VERSION, np.int64),
        offsets=np.cumsum([0, *lengths], dtype=np.int64),
        group_ids=np.asarray(groups, np.int64),
        sample_indices=np.zeros(len(lengths), np.int64),
        rewards=np.zeros(len(lengths), np.float64),
        truncated=np.zeros(len(lengths), np.bool_),
    )


def columns(samples: Sequence[common.Sample], vocabulary: int, shape: ImageShape | None = None) -> TokenBatch:
    """The columns of `samples`, in order; `shape` is that of images, of a model that reads them.

    Raises DataError for arrays of unequal length, for token ids that the model does not have, and for images that are
    not those of the tokens.
    """
    ids: list[NDArray[np.int32]] = []
    logprobs: list[NDArray[np.float32]] = []
    masks: list[NDArray[np.uint8]] = []
    versions: list[NDArray[np.int64]] = []
    routes: list[NDArray[np.uint8] | None] = []
    images: list[tuple[Image, ...]] = []
    pairs = [(sample, sequence) for sample in samples for sequence in sample.sequences]
    for sample, sequence in pairs:
        token_ids = np.frombuffer(sequence.token_ids, dtype="<i4")
        token_logprobs = np.frombuffer(sequence.logprobs, dtype="<f4")
        mask = np.frombuffer(sequence.loss_mask, dtype="u1")
        if not len(token_ids) == len(token_logprobs) == len(mask):
            raise DataError(
                f"sample ({sample.key.group}, {sample.key.index}) has {len(token_ids)} token ids, "
                f"{len(token_logprobs)} log-probabilities and {len(mask)} mask entries",
                fix="make the workflow return arrays of one length for each sequence",
            )
        version = np.full(len(token_ids), NO_VERSION, dtype=np.int64)
        for span in sequence.spans:
            version[span.start : span.end] = version_of(span.policy_id)
        ids.append(token_ids)
        logprobs.append(token_logprobs)
        masks.append(mask)
        versions.append(version)
        routes.append(_routes(sequence, len(token_ids)))
        images.append(tuple(Image(each.data) for each in sequence.attachments if each.kind == IMAGE))
    token_column = np.concatenate(ids).astype(np.int64) if ids else np.zeros(0, np.int64)
    if token_column.size and not (int(token_column.min()) >= 0 and int(token_column.max()) < vocabulary):
        raise DataError(
            f"token ids reach from {token_column.min()} to {token_column.max()}, the model has {vocabulary}",
            fix="use the tokenizer that belongs to the model",
        )
    return TokenBatch(
        token_ids=token_column,
        behaviour_logprobs=np.concatenate(logprobs).astype(np.float32) if ids else np.zeros(0, np.float32),
        loss_mask=np.concatenate(masks).astype(np.bool_) if ids else np.zeros(0, np.bool_),
        versions=np.concatenate(versions) if ids else np.zeros(0, np.int64),
        offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        group_ids=np.array([sample.key.group for sample, _ in pairs], dtype=np.int64),
        sample_indices=np.array([sample.key.index for sample, _ in pairs], dtype=np.int64),
        rewards=np.array([sequence.reward for _, sequence in pairs], dtype=np.float64),
        truncated=np.array([sequence.finish_reason == "length" for _, sequence in pairs], dtype=np.bool_),
        verdicts=np.array([sample.verdict.status.encode("ascii", "replace") for sample, _ in pairs], dtype=VERDICT),
        routes=_joined(routes, [len(entry) for entry in ids]),
        **(image_columns(ids, images, shape) if any(images) else {}),
    )


def image_columns(
    ids: Sequence[NDArray[Any]], images: Sequence[tuple[Image, ...]], shape: ImageShape | None
) -> dict[str, Any]:
    """The columns of the images of sequences [tokens], each file once. Raises DataError as `columns` does."""
    if shape is None:
        raise DataError("samples have images, and the model reads none", fix="train the model that was sampled from")
    files = {image: number for number, image in enumerate(dict.fromkeys(image for some in images for image in some))}
    places: list[tuple[int, int]] = []
    first = 0
    for tokens, some in zip(ids, images, strict=True):
        begins = shape.begins(tokens, some)
        places += [(first + begin, files[image]) for begin, image in zip(begins, some, strict=True)]
        first += len(tokens)
    positions = [shape.positions(tokens, some) for tokens, some in zip(ids, images, strict=True)]
    return {
        "image_positions": np.concatenate(positions, axis=1).T.copy(),
        "image_places": np.array(places, np.int64).reshape(-1, 2),
        "image_files": np.frombuffer(b"".join(image.data for image in files), np.uint8),
        "image_ends": np.cumsum([len(image.data) for image in files], dtype=np.int64),
    }


def _routes(sequence: common.TokenSequence, tokens: int) -> NDArray[np.uint8] | None:
    """A sequence's routes [tokens, bytes]; None where they are not known."""
    told = next((each.data for each in sequence.attachments if each.kind == ROUTES), b"")
    if len(told) % max(1, tokens):
        raise DataError(f"a sequence of {tokens} tokens has {len(told)} bytes of routes")
    return np.frombuffer(told, np.uint8).reshape(tokens, -1) if told else None


def _joined(routes: Sequence[NDArray[np.uint8] | None], lengths: Sequence[int]) -> NDArray[np.uint8]:
    """All sequences' routes, with those that aren't known as missing."""
    widths = {each.shape[1] for each in routes if each is not None}
    if len(widths) > 1:
        raise DataError(f"routes of one batch have {sorted(widths)} bytes a token: they are of different models")
    if not widths:
        return np.zeros((0, 0), np.uint8)
    pairs = zip(routes, lengths, strict=True)
    return np.concatenate([np.full((n, *widths), MISSING, np.uint8) if each is None else each for each, n in pairs])
