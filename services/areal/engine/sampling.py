"""Choosing tokens: one uniform number a token, from a counter, turned into a token by the inverse of the distribution.

The number is a hash of (seed, absolute position of the token) and of nothing else, so a sample does not depend on which
other requests share its batch, and a request that is interrupted and submitted again elsewhere, with its tokens so far,
continues as if nothing had happened. Probabilities are float32, their sums float64: in float32 they would be off
by more than the probability of a rare token in a large vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BLOCK = 512  # tokens of a partial sum: about the root of a large vocabulary
_CANDIDATES = 1024  # most likely tokens put in order first: nearly always more than top-p keeps

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
        weights = logprobs.exp()
        truncated = (choice.top_k > 0) | (choice.top_p < 1.0) | (choice.min_p > 0.0)
        if truncated.any():
            picked = torch.from_numpy(np.flatnonzero(truncated))
            weights[picked] = _truncate(weights[picked], choice, truncated)
        tokens = _invert(weights, torch.from_numpy(uniforms(choice.seeds, choice.positions))[:, None])
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy), logprobs.argmax(-1), tokens)
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
    return tokens.numpy(), chosen.numpy()


def forbid(logits: Tensor, row: int, token_ids: NDArray[np.int64]) -> None:
    """Make some tokens of a row impossible, in place."""
    logits[row, torch.from_numpy(token_ids)] = -math.inf


def _invert(weights: Tensor, drawn: Tensor) -> Tensor:
    """The token at which the cumulative weight of a row passes `drawn` of its total. float32 [rows, vocab] → [rows]

    Blocks are summed in float64, then the block that is hit: two short searches instead of one long sum in float64.
    """
    rows, vocab = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -vocab % _BLOCK)).view(rows, -1, _BLOCK)
    ends = padded.sum(-1, dtype=torch.float64).cumsum(-1)
    aim = drawn * ends[:, -1:]
    aim = torch.minimum(aim, torch.nextafter(ends[:, -1:], torch.zeros_like(aim)))
    block = torch.searchsorted(ends, aim, right=True).clamp_(max=ends.shape[-1] - 1)
    before = torch.where(block > 0, ends.gather(-1, (block - 1).clamp_(min=0)), torch.zeros_like(aim))
    hit = padded.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    inside = hit.double().cumsum(-1)
    # sums of one block in two orders may differ in the last bit: never past its last possible token
    rest = torch.minimum(aim - before, torch.nextafter(inside[:, -1:], torch.zeros_like(aim))).clamp_(min=0.0)
    return (block * _BLOCK + torch.searchsorted(inside, rest, right=True))[:, 0].clamp_(max=vocab - 1)


def _truncate(weights: Tensor, choice: Choice, truncated: NDArray[np.bool_]) -> Tensor:
    """Zero the probabilities outside top-k, then outside top-p, then below min-p. float32 [picked, vocab]

    Only the largest are put in order; the whole row is, where so many don't decide.
    """
    vocab = weights.shape[-1]
    top_k = torch.from_numpy(np.where(choice.top_k[truncated] > 0, choice.top_k[truncated], vocab))[:, None]
    top_p = torch.from_numpy(choice.top_p[truncated].astype(np.float64))[:, None]
    min_p = torch.from_numpy(choice.min_p[truncated])[:, None]
    kept = torch.zeros_like(weights)
    undecided = torch.arange(weights.shape[0])
    for count in (min(_CANDIDATES, vocab), vocab):
        rows = weights[undecided]
        ordered, order = rows.topk(count, dim=-1) if count < vocab else rows.sort(-1, descending=True)
        before = ordered.cumsum(-1, dtype=torch.float64) - ordered
        inside = (
            (torch.arange(count) < top_k[undecided])
            & (before <= top_p[undecided])
            & (ordered >= min_p[undecided] * ordered[:, :1])
        )
        kept[undecided] = torch.zeros_like(kept[undecided]).scatter_(-1, order, ordered.masked_fill(~inside, 0.0))
        undecided = undecided[inside[:, -1]]  # the last one seen is still inside, so the next may be, too
        if count == vocab or not len(undecided):
            break
    return kept


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
