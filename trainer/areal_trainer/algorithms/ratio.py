"""Importance ratios u = π_θ/π_prox of a token or of a whole sequence (GSPO, arXiv 2507.18071).

Pure. Sums over a sequence need all of its tokens: a micro-batch holds whole sequences.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

ImportanceLevel = Literal["token", "sequence"]

LIMIT = 20.0  # of a log-ratio before exp: every clip and rejection has acted long before


def sequence_sum(values: Tensor, sequence: Tensor) -> Tensor:
    """For each token, the sum over its sequence. Differentiable. [tokens]."""
    _, member = torch.unique(sequence, return_inverse=True)
    total = torch.zeros(int(member.max()) + 1 if member.numel() else 0, dtype=values.dtype, device=values.device)
    return total.index_add(0, member, values)[member]


def sequence_mean(values: Tensor, sequence: Tensor) -> Tensor:
    """For each token, the mean over its sequence. Differentiable. [tokens]."""
    return sequence_sum(values, sequence) / sequence_sum(torch.ones_like(values), sequence)


def importance_ratio(logprobs: Tensor, proximal: Tensor, sequence: Tensor, level: ImportanceLevel) -> Tensor:
    """u = exp(ℓ − p), or for a sequence the exponential of its mean, which all its tokens share. [tokens]."""
    delta = logprobs - proximal
    if level == "sequence":
        delta = sequence_mean(delta, sequence)
    return torch.exp(delta.clamp(-LIMIT, LIMIT))
