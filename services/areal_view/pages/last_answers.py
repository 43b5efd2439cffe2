"""Sample answers of a run's last recorded step, for its report: the best, the worst, and some between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from areal.v1 import record_pb2 as record

from areal_view.index.record_index import RecordIndex
from areal_view.index.shown import visible

_MOST = 6
_LETTERS = 2_000  # of a prompt or an answer: the page must stay small enough to be sent

Item = TypeVar("Item")


@dataclass(frozen=True)
class ShownSample:
    """One answer with its reward."""

    group: int
    index: int
    reward: float
    prompt: str
    answer: str


def last_answers(index: RecordIndex, step: int) -> list[ShownSample]:
    """Answers that step `step` trained, from the lowest reward to the highest; none where nothing is recorded."""
    rows = [row for one in index.groups(step)[: 4 * _MOST] for row in index.samples(one.group)]
    chosen = spread(sorted(rows, key=lambda row: row.reward), _MOST)
    found = [(row, index.sample(row.place)) for row in chosen]
    return [ShownSample(row.group, row.index, row.reward, *_texts(made)) for row, made in found if made is not None]


def spread(values: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of the values, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _texts(made: record.SampleRecord) -> tuple[str, str]:
    """What was asked and what was sampled, of the first sequence."""
    if not made.texts or not made.sample.sequences:
        return "", ""
    whole, ends = made.texts[0].text, np.frombuffer(made.texts[0].token_ends, "<u4")
    start = min((span.start for span in made.sample.sequences[0].spans), default=0)
    cut = int(ends[start - 1]) if 0 < start <= len(ends) else 0
    return _short(visible(whole[:cut])), _short(visible(whole[cut:]))


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}… ({len(text) - _LETTERS:,} letters more)"
