"""The policy-gradient loss per token: ratio, surrogate, behaviour weight, rejection, KL and entropy put together.

Pure. Returns terms a token; who calls it sums them with the weights of `aggregation`. A rejected token adds nothing and
changes no other token's weight.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_trainer.algorithms.ratio import (
    LIMIT,
    ImportanceLevel,
    Weight,
    WeightTruncation,
    behaviour_weight,
    importance_ratio,
    kl_loss,
)
from areal_trainer.algorithms.rejection import DPPOOptions, RejectionRule, dppo_loss, rejected

# ---- Surrogate objectives of a policy gradient, per token, to be minimised: PPO's band, none, SAPO's gate, CISPO
# Pure. The advantage is a constant everywhere; the behaviour weight is applied by the caller.


Kind = Literal["ppo", "none", "sapo", "cispo"]


@dataclass(frozen=True)
class Surrogate:
    """Which objective, and its constants."""

    kind: Kind = "ppo"
    clip_low: float = 0.2  # ε below 1
    clip_high: float = 0.2  # ε above 1
    dual_clip: float | None = None  # c > 1: the loss of a negative advantage is at most c·|A|
    tau_positive: float = 1.0  # SAPO's temperatures, by the sign of the advantage
    tau_negative: float = 1.05


def surrogate_loss(logprobs: Tensor, ratio: Tensor, advantages: Tensor, options: Surrogate) -> tuple[Tensor, Tensor]:
    """The loss with gradient and where a clip decided, [tokens] each.

    ppo     −min(uA, clip(u, 1−ε_l, 1+ε_h)A); for A < 0 at most c|A| with dual clip    (1707.06347, 1912.09729)
    none    −uA
    sapo    −(4/τ)·σ(τ(u − 1))·A                                                       (2511.20347)
    cispo   −sg(clip(u, 1−ε_l, 1+ε_h))·A·ℓ                                             (2506.13585)
    """
    low, high = 1.0 - options.clip_low, 1.0 + options.clip_high
    if options.kind == "none":
        return -ratio * advantages, torch.zeros_like(advantages, dtype=torch.bool)
    if options.kind == "sapo":
        positive = torch.full_like(ratio, options.tau_positive)
        tau = torch.where(advantages > 0, positive, torch.full_like(ratio, options.tau_negative))
        gate = 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0))
        return -gate * advantages, torch.zeros_like(advantages, dtype=torch.bool)
    limited = ratio.clamp(low, high)
    if options.kind == "cispo":
        return -limited.detach() * advantages * logprobs, (limited != ratio).detach()
    unclipped = ratio * advantages
    bounded = limited * advantages
    loss = -torch.minimum(unclipped, bounded)
    clipped = (bounded < unclipped).detach()
    if options.dual_clip is not None:
        most = options.dual_clip * advantages.abs()
        beyond = (advantages < 0) & (loss > most)
        loss = torch.where(beyond, most, loss)
        clipped = clipped | beyond.detach()
    return loss, clipped


# ---- The policy-gradient loss per token: ratio, surrogate, behaviour weight, rejection, KL and entropy put together


LossEstimator = Literal["k2", "k3", "k3u"]


@dataclass(frozen=True)
class KLLoss:
    """β·κ(ℓ − f) in the loss, κ no steeper than 10. k1 is no choice: its expected gradient is 0 (arXiv 2510.01555)."""

    coefficient: float
    estimator: LossEstimator = "k2"


@dataclass(frozen=True)
class PolicyOptions:
    """What the loss of a token is made of."""

    surrogate: Surrogate | DPPOOptions = field(default_factory=Surrogate)
    importance: ImportanceLevel = "token"
    weight: Weight = "token"
    truncate: WeightTruncation | None = None
    rejection: tuple[RejectionRule, ...] = ()
    kl: KLLoss | None = None
    entropy_coefficient: float = 0.0


@dataclass(frozen=True)
class PolicyTerms:
    """All [tokens]. `loss`, `kl` and `entropy` carry gradients."""

    loss: Tensor  # of the policy, 0 where rejected
    regulariser: Tensor  # β·w·κ − c_H·H, always a mean over tokens
    ratio: Tensor  # u
    behaviour_weight: Tensor  # the constant factor in front; 0 where rejected
    clipped: Tensor  # bool: a clip decided
    rejected: Tensor  # bool
    reference_kl: Tensor  # κ against the reference, without its coefficient; 0 without a reference


def policy_loss(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    sequence: Tensor,
    options: PolicyOptions,
    *,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
    dropped: Tensor | None = None,
) -> PolicyTerms:
    """w·surrogate(u, A) with u = π_θ/π_prox and the constant w = π_prox/π_behav (arXiv 2505.24298, eq. 5).

    With π_prox = π_behav it is the plain algorithm; DPPO measures from π_behav always. Where the level is the sequence,
    its tokens here are all of its trained tokens, and each keeps its own advantage.

    Args:
        logprobs: of π_θ, with gradient, [tokens]
        proximal, behaviour, advantages: constants, [tokens]
        sequence: which sequence each token belongs to, any integers, [tokens]
        reference: log-probabilities of the reference, [tokens]; needed with `options.kl`
        entropy: of π_θ, with gradient, [tokens]; needed with an entropy coefficient
        dropped: tokens that are rejected for another reason, [tokens] bool
    """
    proximal = proximal.detach()
    out = rejected(proximal, behaviour, sequence, options.rejection)
    impossible = ~torch.isfinite(torch.exp(proximal - behaviour))
    if dropped is not None:
        out = out | dropped
    distance = torch.where(impossible, torch.zeros_like(proximal), proximal - behaviour)
    weight = behaviour_weight(distance, sequence, options.weight, options.truncate)
    weight = torch.where(out, torch.zeros_like(weight), weight)
    centre = torch.where(torch.isfinite(proximal), proximal, logprobs.detach())  # inf · 0 would put NaN into gradients
    if isinstance(options.surrogate, DPPOOptions):
        made = torch.where(torch.isfinite(behaviour), behaviour, logprobs.detach())
        loss, clipped, ratio = dppo_loss(logprobs, made, advantages, options.surrogate)
    else:
        ratio = importance_ratio(logprobs, centre, sequence, options.importance)
        loss, clipped = surrogate_loss(logprobs, ratio, advantages, options.surrogate)
    loss = torch.where(out, torch.zeros_like(loss), weight * loss)
    divergence = torch.zeros_like(loss)
    regulariser = torch.zeros_like(loss)
    if options.kl is not None:
        if reference is None:
            raise ValueError("a KL loss needs the reference's log-probabilities")
        divergence = _divergence(logprobs, reference, behaviour, options.kl)
        factor = torch.ones_like(weight) if options.kl.estimator == "k3u" else weight
        regulariser = options.kl.coefficient * torch.where(out, torch.zeros_like(divergence), factor * divergence)
    if options.entropy_coefficient:
        if entropy is None:
            raise ValueError("an entropy bonus needs entropies")
        regulariser = regulariser - options.entropy_coefficient * entropy
    return PolicyTerms(
        loss=loss,
        regulariser=regulariser,
        ratio=ratio.detach(),
        behaviour_weight=weight,
        clipped=clipped & ~out,
        rejected=out,
        reference_kl=divergence.detach(),
    )


def _divergence(logprobs: Tensor, reference: Tensor, behaviour: Tensor, options: KLLoss) -> Tensor:
    """κ by token. k3u carries its own importance ratio e^{ℓ−b}, with gradient: unbiased off policy (2512.02556)."""
    if options.estimator == "k2":
        return kl_loss(logprobs, reference, "k2")
    value = kl_loss(logprobs, reference, "k3")
    return value if options.estimator == "k3" else torch.exp((logprobs - behaviour).clamp(-LIMIT, LIMIT)) * value


# ---- The critic's loss: squared or Huber error of a value against its return, clipped around the old value
# Pure. Returns terms a token, as the policy's loss does. A token that the policy's loss rejects still trains the
# critic.


_DELTA = 10.0  # where Huber's loss becomes linear


@dataclass(frozen=True)
class ValueOptions:
    """ε_v: how far a value may move from its old one; None is no limit."""

    clip: float | None = 0.5
    kind: Literal["mse", "huber"] = "mse"


def value_loss(values: Tensor, old: Tensor, returns: Tensor, options: ValueOptions) -> tuple[Tensor, Tensor]:
    """max(h(V − G), h(V^c − G)), and where the clipped branch decided, [tokens] each.

    V^c = V_old + clip(V − V_old, ±ε_v); h(x) = x²/2, or Huber's with δ = 10.
    """
    plain = _error(values - returns, options.kind)
    if options.clip is None:
        return plain, torch.zeros_like(plain, dtype=torch.bool)
    limited = _error(old + (values - old).clamp(-options.clip, options.clip) - returns, options.kind)
    return torch.maximum(plain, limited), (limited > plain).detach()


def _error(x: Tensor, kind: str) -> Tensor:
    square = 0.5 * x * x
    return square if kind == "mse" else torch.where(x.abs() < _DELTA, square, _DELTA * (x.abs() - 0.5 * _DELTA))


# ---- Loss aggregation: how much each token of a mini-batch weighs (token mean, sequence mean, Dr.GRPO's constant)
# Counts are over the whole mini-batch, all ranks, before rejection: the loss is a plain sum of weighted tokens.


Aggregation = Literal["token", "sequence", "constant"]


def divisor(trained: NDArray[np.bool_], sequence: NDArray[np.int64], aggregation: Aggregation) -> int:
    """The N or S_t of `token_weights`: of a batch in parts, the parts' add up."""
    return int(trained.sum()) if aggregation == "token" else len(np.unique(sequence[trained]))


def token_weights(
    trained: NDArray[np.bool_],
    sequence: NDArray[np.int64],
    aggregation: Aggregation,
    horizon: int | None = None,
    *,
    summed: bool = False,
) -> NDArray[np.float64]:
    """The factor of each token's loss, 0 off `trained`. [tokens].

        token     1/N                N trained tokens: every token weighs the same
        sequence  1/(S_t·n_s)        S_t sequences with n_s trained tokens each: every sequence weighs the same
        constant  1/(S_t·H)          H the longest answer (arXiv 2503.20783): no weight depends on a length

    Args:
        trained: tokens of this mini-batch that are trained, [tokens]
        sequence: the sequence of each token, [tokens]
        horizon: H, for `constant`
        summed: 1 in the place of N or S_t, which the gradient is divided by once the batch is whole
    """
    tokens = np.bincount(sequence[trained], minlength=int(sequence.max(initial=-1)) + 1)
    count = 1 if summed else max(divisor(trained, sequence, aggregation), 1)
    weights = np.zeros(len(trained), np.float64)
    if aggregation == "token":
        weights[trained] = 1.0 / count
    elif aggregation == "sequence":
        weights[trained] = 1.0 / (count * tokens[sequence[trained]])
    else:
        if horizon is None:
            raise ValueError("constant aggregation needs the longest answer")
        weights[trained] = 1.0 / (count * horizon)
    return weights
