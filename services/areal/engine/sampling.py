"""Choosing tokens: one uniform number a token, from a counter, turned into a token by the inverse of the distribution.

The number is a hash of (seed, absolute position of the token) and of nothing else, so a sample does not depend on which
other requests share its batch, and a request that is interrupted and submitted again elsewhere, with its tokens so far,
continues as if nothing had happened. The cumulative sums are float64: with float32 they would be off by more than the
probability of a rare token in a large vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class Choice:
    """How each row of a batch chooses. All arrays are [rows]."""

    seeds: NDArray[np.uint64]
    positions: NDArray[np.int64]  # absolute position of the token to be made
    temperatures: NDArray[np.float32]  # 0 is greedy
    top_k: NDArray[np.int64]  # -1 is off
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits: SplitMix64 of the seed, advanced to the position and mixed twice."""
    state = _mix(seeds) + positions.astype(np.uint64) * _GOLDEN
    return (_mix(_mix(state)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(logits: Tensor, choice: Choice) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token of each row of `logits` (float32 [rows, vocab]) and its log-probability.

    The log-probability is that of the temperature-scaled full softmax, before top-k, top-p and min-p; of greedy rows it
    is that at temperature 1, as SGLang reports it.
    """
    greedy = choice.temperatures == 0.0
    scale = np.where(greedy, np.float32(1.0), choice.temperatures)
    if (scale != 1.0).any():
        logits = logits / torch.from_numpy(scale)[:, None]
    logprobs = logits.log_softmax(-1)
    if greedy.all():
        tokens = logprobs.argmax(-1)
    else:
        weights = logprobs.double().exp()
        truncated = (choice.top_k > 0) | (choice.top_p < 1.0) | (choice.min_p > 0.0)
        if truncated.any():
            picked = torch.from_numpy(np.flatnonzero(truncated))
            weights[picked] = _truncate(weights[picked], choice, truncated)
        cumulative = weights.cumsum(-1)
        total = cumulative[:, -1:]
        drawn = torch.from_numpy(uniforms(choice.seeds, choice.positions))[:, None] * total
        drawn = torch.minimum(drawn, torch.nextafter(total, torch.zeros_like(total)))
        tokens = torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy), logprobs.argmax(-1), tokens)
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
    return tokens.numpy(), chosen.numpy()


def forbid(logits: Tensor, row: int, token_ids: NDArray[np.int64]) -> None:
    """Make some tokens of a row impossible, in place."""
    logits[row, torch.from_numpy(token_ids)] = -math.inf


def _truncate(weights: Tensor, choice: Choice, truncated: NDArray[np.bool_]) -> Tensor:
    """Zero the probabilities outside top-k, then outside top-p, then below min-p. [picked, vocab]"""
    vocab = weights.shape[-1]
    top_k = torch.from_numpy(np.where(choice.top_k[truncated] > 0, choice.top_k[truncated], vocab))[:, None]
    top_p = torch.from_numpy(choice.top_p[truncated].astype(np.float64))[:, None]
    min_p = torch.from_numpy(choice.min_p[truncated].astype(np.float64))[:, None]
    ordered, order = weights.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    outside = (torch.arange(vocab) >= top_k) | (before > top_p) | (ordered < min_p * ordered[:, :1])
    return torch.zeros_like(weights).scatter_(-1, order, ordered.masked_fill(outside, 0.0))


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
