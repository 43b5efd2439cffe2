"""Importance ratios u = π_θ/π_prox of a token or of its whole sequence (GSPO-token, arXiv 2507.18071, eq. 14).

Pure. Sums over a sequence need all of its tokens: a micro-batch holds whole sequences.
"""

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
    """u = exp(ℓ − p), or the exponential of its sequence's mean, u_s, as sg(u_s)·e^{ℓ − sg(ℓ)}. [tokens].

    The value is the same for all tokens of a sequence, the gradient is each token's own: tokens may have advantages of
    their own, and with equal ones the sequence's gradient is that of u_s itself.
    """
    delta = logprobs - proximal
    if level == "token":
        return torch.exp(delta.clamp(-LIMIT, LIMIT))
    shared = torch.exp(sequence_mean(delta.detach(), sequence).clamp(-LIMIT, LIMIT))
    return shared * torch.exp(logprobs - logprobs.detach())
