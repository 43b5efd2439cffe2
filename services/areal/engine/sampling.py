"""Choosing tokens: one uniform number a token, from a counter, turned into a token by the inverse of the distribution.

The number is a hash of (seed, absolute position of the token) and of nothing else, so a sample does not depend on which
other requests share its batch, and a request that is interrupted and submitted again elsewhere, with its tokens so far,
continues as if nothing had happened. Weights are float32, their long sums float64: in float32 these would be off by
more than the probability of a rare token in a large vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BLOCK = 512  # tokens of a partial sum: about the root of a large vocabulary
_NUMBERS = 1 << 18  # weights that are computed at once: a mebibyte
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

    def of(self, rows: slice) -> "Choice":
        """How these rows choose."""
        seeds, positions, temperatures = self.seeds[rows], self.positions[rows], self.temperatures[rows]
        return Choice(seeds, positions, temperatures, self.top_k[rows], self.top_p[rows], self.min_p[rows])


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) with 53 random bits: SplitMix64 of the seed, advanced to the position and mixed twice."""
    state = _mix(seeds) + positions.astype(np.uint64) * _GOLDEN
    return (_mix(_mix(state)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(logits: Tensor, choice: Choice) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token of each row of `logits` (float32 [rows, vocab]) and its log-probability.

    The log-probability is that of the temperature-scaled full softmax, before top-k, top-p and min-p; of greedy rows it
    is that at temperature 1, as SGLang reports it.
    """
    rows, vocab = logits.shape
    few = max(1, _NUMBERS // vocab)
    if rows <= few:
        return _choose(logits, choice)
    tokens, logprobs = np.empty(rows, np.int64), np.empty(rows, np.float32)
    for first in range(0, rows, few):
        some = slice(first, first + few)
        tokens[some], logprobs[some] = _choose(logits[some], choice.of(some))
    return tokens, logprobs


def _choose(logits: Tensor, choice: Choice) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """`choose` for few enough rows that what is computed of them stays in the processor's cache."""
    vocab = logits.shape[-1]
    greedy = choice.temperatures == 0.0
    scale = np.where(greedy, np.float32(1.0), choice.temperatures)
    if (scale != 1.0).any():
        logits = logits / torch.from_numpy(scale)[:, None]
    highest = logits.amax(-1, keepdim=True)
    block = 1 if vocab <= _BLOCK else _BLOCK
    padded = logits.new_empty(logits.shape[0], -(-vocab // block) * block)
    weights = torch.sub(logits, highest, out=padded[:, :vocab]).exp_()
    padded[:, vocab:] = 0.0
    ends = _ends(padded, block)
    total = ends[:, -1:].log().float()  # of the whole softmax, before anything is left out
    truncated = (choice.top_k > 0) | (choice.top_p < 1.0) | (choice.min_p > 0.0)
    if (truncated & ~greedy).any():
        picked = torch.from_numpy(np.flatnonzero(truncated))
        weights[picked] = _truncate(weights[picked], ends[picked, -1:], choice, truncated)
        ends = _ends(padded, block)
    if greedy.all():
        tokens = logits.argmax(-1)
    else:
        tokens = _invert(padded, ends, block, torch.from_numpy(uniforms(choice.seeds, choice.positions))[:, None])
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy), logits.argmax(-1), tokens)
    chosen = logits.gather(-1, tokens[:, None]) - highest - total
    return tokens.numpy(), chosen[:, 0].numpy()


def forbid(logits: Tensor, row: int, token_ids: NDArray[np.int64]) -> None:
    """Make some tokens of a row impossible, in place."""
    logits[row, torch.from_numpy(token_ids)] = -math.inf


def _ends(padded: Tensor, block: int) -> Tensor:
    """Cumulative weight at the end of each block. float32 [rows, blocks · block] → float64 [rows, blocks]"""
    sums = padded if block == 1 else padded.view(padded.shape[0], -1, block).sum(-1)
    return sums.double().cumsum(-1)


def _invert(padded: Tensor, ends: Tensor, block: int, drawn: Tensor) -> Tensor:
    """The token at which the cumulative weight of a row passes `drawn` of its total; int64 [rows].

    A block is found by the sums of blocks, a token by the sums inside it, as a share of the block's: so the blocks'
    rounding changes every token's probability by a millionth of itself, a rare one's too.
    """
    aim, hit = _search(ends, drawn)
    if block == 1:
        return hit[:, 0]
    before = torch.where(hit > 0, ends.gather(-1, (hit - 1).clamp_(min=0)), torch.zeros_like(aim))
    inside = padded.view(*ends.shape, block).gather(1, hit[:, :, None].expand(-1, -1, block))[:, 0].double().cumsum(-1)
    _, token = _search(inside, (aim - before) / (ends.gather(-1, hit) - before))
    return (hit * block + token)[:, 0]


def _search(ends: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """This share of the total of cumulative weights [rows, places], below the total, and where they pass it."""
    last = ends[:, -1:]
    aim = torch.minimum(drawn * last, torch.nextafter(last, torch.zeros_like(last)))
    return aim, torch.searchsorted(ends, aim, right=True).clamp_(max=ends.shape[-1] - 1)


def _truncate(weights: Tensor, total: Tensor, choice: Choice, truncated: NDArray[np.bool_]) -> Tensor:
    """Zero the weights outside top-k, then outside top-p of `total`, then below min-p. float32 [picked, vocab]

    Only the largest are put in order; the whole row is, where so many don't decide.
    """
    vocab = weights.shape[-1]
    top_k = torch.from_numpy(np.where(choice.top_k[truncated] > 0, choice.top_k[truncated], vocab))[:, None]
    top_p = torch.from_numpy(choice.top_p[truncated].astype(np.float64))[:, None] * total
    min_p = torch.from_numpy(choice.min_p[truncated])[:, None]
    kept = torch.zeros_like(weights)
    undecided = torch.arange(weights.shape[0])
    for count in sorted({min(_CANDIDATES, vocab), min(8 * _CANDIDATES, vocab), vocab}):
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


# ---- Finish reasons as SGLang names them, and the search for stop strings


ABORTED: dict[str, Any] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_QUEUED: dict[str, Any] = {"type": "abort", "message": "Abort in waiting queue"}
NON_FINITE: dict[str, Any] = {
    **ABORTED,
    "message": "the model's logits are not finite: its weights are broken",
    "err_type": "NonFiniteLogits",
}
PARTIAL_BYTES = 8  # tokens before a stop string that may share a character with it


def rid_taken(rid: str) -> dict[str, Any]:
    """The end of a request whose id belongs to another one."""
    return {"type": "abort", "message": f"rid {rid} is in use", "status_code": 400, "err_type": "BadRequest"}


def length(tokens: int) -> dict[str, Any]:
    """All tokens that were asked for were made."""
    return {"type": "length", "length": tokens}


def stop(matched: int | str) -> dict[str, Any]:
    """A stop token or string was made; it is part of the output."""
    return {"type": "stop", "matched": matched}


def matched_text(
    made: NDArray[np.int64], stops: tuple[str, ...], decode_text: Callable[[list[int]], str]
) -> str | None:
    """The stop string that the newest text contains. It is asked after every token, so a tail is enough: a token is at
    least a byte, and what ended earlier was found earlier.
    """
    tail = max(len(text.encode()) for text in stops) + PARTIAL_BYTES
    text = decode_text(made[-tail:].tolist())
    return next((candidate for candidate in stops if candidate in text), None)
