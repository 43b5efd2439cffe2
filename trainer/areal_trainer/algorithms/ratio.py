"""Importance ratios u = π_θ/π_prox of a token or of its whole sequence (GSPO-token, arXiv 2507.18071, eq. 14).

Pure. Sums over a sequence need all of its tokens: a micro-batch holds whole sequences.
"""

import math
from dataclasses import dataclass
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


# ---- The proximal policy: which log-probability the trust region is centred on
# Pure. `trainingPass` takes it from the loss's own forward pass, `recompute` from a pass before the first update; the
# others approximate it from the behaviour policy and the token's age (A-3PO, arXiv 2512.06547).


Proximal = Literal["trainingPass", "recompute", "loglinear", "behaviour"]


def log_linear(logprobs: Tensor, behaviour: Tensor, versions: Tensor, step: int) -> Tensor:
    """b + (1 − 1/a)·(sg(ℓ) − b) with age a = (step + 1) − v ≥ 1, [tokens].

    A token made by the weights that this step starts from has a = 1 and p = b; so has one that no policy made.

    Args:
        versions: the policy version of each token, −1 where not sampled, [tokens]
        step: the 0-based step, which makes version step + 1
    """
    age = torch.where(versions < 0, 1, step + 1 - versions).clamp(min=1).to(logprobs.dtype)
    far = logprobs.detach() - behaviour
    return behaviour + torch.where(age > 1, (1.0 - 1.0 / age) * far, torch.zeros_like(far))


# ---- The behaviour weight w = π_prox/π_behav: corrects for the policy that made the tokens having been another one
# Pure, without gradient, always applied; leaving tokens out is a thing of its own (`rejection`). Truncation is TIS.


Weight = Literal["token", "sequenceMean", "sequenceProduct"]


@dataclass(frozen=True)
class WeightTruncation:
    """w ← min(max(w, lower), upper). Truncated importance sampling with upper 2 is usual."""

    upper: float
    lower: float | None = None


def behaviour_weight(
    distance: Tensor, sequence: Tensor, level: Weight, truncate: WeightTruncation | None = None
) -> Tensor:
    """e^d by token, of the sequence's mean d, or of its sum. [tokens].

    token is biased with low variance; sequenceProduct is unbiased and spreads as e^{σ√n}; sequenceMean is biased and
    doesn't depend on length.

    Args:
        distance: d = p − b, finite, [tokens]
    """
    if level == "sequenceMean":
        distance = sequence_mean(distance, sequence)
    elif level == "sequenceProduct":
        distance = sequence_sum(distance, sequence)
    weight = torch.exp(distance.clamp(-LIMIT, LIMIT))
    return weight if truncate is None else weight.clamp(truncate.lower or 0.0, truncate.upper)


# ---- Estimators of KL(π‖π_ref) from tokens sampled by π (Schulman, "Approximating KL divergence", 2020)


Estimator = Literal["k1", "k2", "k3"]

_STEEPEST = 10.0  # of a loss: an unlikely token pulls back as hard as this and no harder


def kl(logprobs: Tensor, reference: Tensor, estimator: Estimator) -> Tensor:
    """Per token, [tokens], with Δ = log π − log π_ref.

    k1 = Δ is unbiased and may be negative; k2 = Δ²/2 is biased and of low variance;
    k3 = e^{−Δ} − 1 + Δ is unbiased and never negative.
    """
    delta = logprobs - reference
    if estimator == "k1":
        return delta
    if estimator == "k2":
        return 0.5 * delta * delta
    return torch.expm1(-delta) + delta


def kl_loss(logprobs: Tensor, reference: Tensor, estimator: Literal["k2", "k3"]) -> Tensor:
    """k2 or k3 as a loss, per token, [tokens]: beyond a slope of ±10 it goes on as a straight line.

    k3 is linear below Δ = −ln 11, k2 beyond |Δ| = 10. k3 of an impossible token, e^20 at Δ = −20, would outweigh the
    batch; a value that is cut has no gradient just where the pull is needed.
    """
    delta = logprobs - reference
    near = delta.clamp(min=-math.log1p(_STEEPEST)) if estimator == "k3" else delta.clamp(-_STEEPEST, _STEEPEST)
    slope = -torch.expm1(-near) if estimator == "k3" else near
    return kl(near, torch.zeros_like(near), estimator) + slope.detach() * (delta - near)
