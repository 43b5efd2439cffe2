"""Useful floating-point operations of one training step of a dense decoder-only transformer. Pure.

Useful is what the mathematics needs: six a weight and token (forward, and twice that backward), the head only where a
token is predicted, causal attention inside each document. What is computed again for want of memory doesn't count, nor
masked scores, so a share of a GPU's peak can be compared between ways of doing it (as in PaLM, arXiv 2204.02311, B).
"""

from __future__ import annotations

from collections.abc import Sequence

from areal.admit.memory.shape import ModelShape

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12}
"""Dense bfloat16 operations a second by the data sheet of the card (SXM), named by a part of its name."""


def step_flops(shape: ModelShape, documents: Sequence[int], predicted: int) -> float:
    """Of one step over documents of so many tokens, `predicted` of which have a log-probability."""
    tokens = sum(documents)
    matrices = shape.hidden * (2 * shape.queries + 2 * shape.keys + 3 * shape.intermediate)
    body = 6 * shape.layers * matrices * tokens
    head = 6 * shape.vocabulary * shape.hidden * predicted
    # scores and weighted values are 2 · queries each for one of L²/2 pairs, forward and twice backward
    attention = 6 * shape.layers * shape.queries * sum(length * length for length in documents)
    return float(body + head + attention)


def peak_of(card: str, measured: float) -> float:
    """Operations a second that a share is of: the data sheet's, or the largest measured for a card without one here."""
    return next((peak for name, peak in PEAKS.items() if name in card), measured)
