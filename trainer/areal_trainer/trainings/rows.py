"""The dataset of a supervised run as training batches: rows are encoded when they are needed, on every rank alike."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash
from areal.data import Snapshot
from areal.data.order import RowOrder
from areal.errors import ArealError
from areal.spec.job import JobSpec
from areal.workflow.examples import Example, margin_of, sequences_of
from areal.workflow.tokenizer import Tokenizer
from numpy.typing import NDArray

from areal_trainer.data.batch import NO_VERSION, TokenBatch

_EVALUATED_TOGETHER = 256  # rows of one forward pass' batch where nothing is learned


class PreparedRows:
    """One prepared split."""

    def __init__(self, directory: Path, tokenizer: Tokenizer, spec: JobSpec) -> None:
        block = spec.supervised
        if block is None:
            raise ValueError("RL has no fixed rows")
        self._snapshot = Snapshot(directory)
        self._tokenizer = tokenizer
        self._spec = spec
        self._longest = block.max_tokens
        self._scored = spec.reward_model
        self.truncated = 0  # sequences that were cut so far

    def __len__(self) -> int:
        return len(self._snapshot)

    def order(self, seed: int) -> RowOrder:
        """Which row each position has."""
        return self._snapshot.order(seed)

    @property
    def digest(self) -> str:
        """Names the rows."""
        return self._snapshot.digest

    def fingerprint(self, row: int) -> int:
        """xxh3 of a row as it is on disk."""
        return xxhash.xxh3_64_intdigest(self._snapshot.row_json(row))

    def margins(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Margin by which the chosen answer of each pair must score higher, [rows]."""
        field = None if self._scored is None else self._scored.margin_field
        return np.array([margin_of(self._snapshot.row(row), field) for row in rows], np.float64)

    def batch(self, rows: Sequence[int]) -> TokenBatch:
        """The sequences of some rows; a row's sequences share a group, which is its place among `rows`."""
        examples, groups = [], []
        for place, row in enumerate(rows):
            found = self._examples(row)
            examples += found
            groups += [place] * len(found)
        return token_batch(examples, groups)

    def chunks(self, rows: Sequence[int]) -> Iterator[tuple[Sequence[int], TokenBatch]]:
        """All of `rows` in batches of a bounded size."""
        for start in range(0, len(rows), _EVALUATED_TOGETHER):
            part = rows[start : start + _EVALUATED_TOGETHER]
            yield part, self.batch(part)

    def _examples(self, row: int) -> list[Example]:
        try:
            found = sequences_of(self._snapshot.row(row), self._tokenizer, self._spec)
        except ArealError as error:
            raise type(error)(f"{self._snapshot.place(row)}: {error.message}", fix=error.fix) from error
        self.truncated += sum(len(example.ids) > self._longest for example in found)
        kept = [example.cut(self._longest) for example in found]
        return kept if self._scored is None else [example.scored() for example in kept]


def token_batch(examples: Sequence[Example], groups: Sequence[int]) -> TokenBatch:
    """Columns of some sequences; what only sampled tokens have is empty in them."""
    lengths = [len(example.ids) for example in examples]
    offsets = np.zeros(len(examples) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    tokens = int(offsets[-1])
    return TokenBatch(
        token_ids=np.concatenate([example.ids for example in examples]),
        behaviour_logprobs=np.zeros(tokens, np.float32),
        loss_mask=np.concatenate([example.mask for example in examples]),
        versions=np.full(tokens, NO_VERSION, np.int64),
        offsets=offsets,
        group_ids=np.asarray(groups, np.int64),
        sample_indices=np.zeros(len(examples), np.int64),
        rewards=np.zeros(len(examples), np.float64),
        truncated=np.zeros(len(examples), np.bool_),
    )
