"""Losses on fixed rows as the weight of each output of the model. Pure: numpy in, numpy out.

Every loss here reaches the model through its outputs ℓ_j alone (log-probabilities, scores of a reward model, or a
student's divergences from its teacher), so its gradient is Σ_j (∂L/∂ℓ_j)·∇ℓ_j: a training is the function from a batch
to these weights. They are formed from the whole batch before the pass that learns, so that no loss depends on how
sequences are packed, cut into micro-batches or dealt to ranks.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from areal_trainer.data.batch import TokenBatch


@dataclass(frozen=True)
class RowsObjective:
    """A loss around the present weights. `loss` None: it is Σ weights·ℓ of the learning pass itself."""

    weights: NDArray[np.float64]  # [tokens], ∂L/∂ℓ; 0 where a token doesn't count
    loss: float | None = None
    figures: dict[str, float] = field(default_factory=dict)  # for metrics


def sft(batch: TokenBatch, aggregation: Literal["token", "sequence"] = "token") -> RowsObjective:
    """Negative log-likelihood of the trained tokens: −(1/N) Σ_j m_j ℓ_j, or the mean over sequences of their means."""
    mask = batch.trainable().astype(np.float64)
    if aggregation == "token":
        return RowsObjective(-mask / max(mask.sum(), 1.0))
    counts = per_sequence(batch, mask)
    sequences = max(int((counts > 0).sum()), 1)
    return RowsObjective(-mask / (np.maximum(counts, 1)[batch.sequence_of] * sequences))


def distillation(batch: TokenBatch) -> RowsObjective:
    """Mean of a student's divergences from its teacher over the trained tokens: (1/N) Σ_j m_j D_j."""
    mask = batch.trainable().astype(np.float64)
    return RowsObjective(mask / max(mask.sum(), 1.0))


@dataclass(frozen=True)
class PairLoss:
    """DPO and IPO of pairs. `label_smoothing` ε: cDPO; `nll_weight` α: of the chosen answer's own likelihood."""

    beta: float = 0.1
    loss: Literal["sigmoid", "ipo"] = "sigmoid"
    label_smoothing: float = 0.0
    nll_weight: float = 0.0


def dpo(
    batch: TokenBatch, logprobs: NDArray[np.float32], reference: NDArray[np.float64], options: PairLoss
) -> RowsObjective:
    """Preference loss of pairs (2305.18290, 2310.12036), mean over pairs whose sides both have a trained token.

    With Λ_y = Σ m_j ℓ_j − reference: sigmoid −(1−ε) log σ(β(Λ_c−Λ_r)) − ε log σ(−β(Λ_c−Λ_r)); ipo
    (Λ_c/n_c − Λ_r/n_r − 1/(2β))².

    Args:
        batch: sequences 2p and 2p+1 are the chosen and the rejected answer of pair p.
        logprobs: [tokens] under the present weights.
        reference: [sequences], Σ m_j ℓ_j under the start model.
    """
    mask = batch.trainable()
    counts = per_sequence(batch, mask.astype(np.float64))
    sums = per_sequence(batch, np.where(mask, logprobs, 0.0).astype(np.float64))
    lengths = np.maximum(counts, 1)
    gain = sums - reference
    valid = (counts[0::2] > 0) & (counts[1::2] > 0)
    pairs = max(int(valid.sum()), 1)
    share = valid / pairs
    slope_c, slope_r = np.ones(len(valid)), np.ones(len(valid))
    if options.loss == "ipo":
        slope_c, slope_r = 1 / lengths[0::2], 1 / lengths[1::2]
        off = gain[0::2] * slope_c - gain[1::2] * slope_r - 1 / (2 * options.beta)
        each, slope = off**2, 2 * off
    else:
        scaled, smooth = options.beta * (gain[0::2] - gain[1::2]), options.label_smoothing
        each = (1 - smooth) * np.logaddexp(0, -scaled) + smooth * np.logaddexp(0, scaled)
        slope = options.beta * (smooth * _sigmoid(scaled) - (1 - smooth) * _sigmoid(-scaled))
    nll = -sums[0::2] / lengths[0::2]
    of_sequence = np.empty(len(counts))
    of_sequence[0::2] = share * (slope * slope_c - options.nll_weight / lengths[0::2])
    of_sequence[1::2] = -share * slope * slope_r
    rewards = options.beta * gain
    margin = rewards[0::2] - rewards[1::2]
    return RowsObjective(
        np.where(mask, of_sequence[batch.sequence_of], 0.0),
        float((share * (each + options.nll_weight * nll)).sum()),
        {
            "pairs": float(valid.sum()),
            "pair_accuracy": float((share * (margin > 0)).sum()),
            "margin": float((share * margin).sum()),
            "chosen_reward": float((share * rewards[0::2]).sum()),
            "rejected_reward": float((share * rewards[1::2]).sum()),
            "chosen_logprob": float(-(share * nll).sum()),
        },
    )


def bradley_terry(
    batch: TokenBatch, outputs: NDArray[np.float32], margins: NDArray[np.float64], centering: float = 0.0
) -> RowsObjective:
    """Loss of a reward model on pairs (2203.02155, 2307.09288), mean over pairs.

    Of scores s: −log σ(s_c − s_r − margin) + centering·(s_c + s_r)².

    Args:
        batch: sequences 2p and 2p+1 are the chosen and the rejected answer of pair p, each with one trained place.
        outputs: [tokens], the sequence's score at that place.
        margins: [pairs]
    """
    mask = batch.trainable()
    scores = per_sequence(batch, np.where(mask, outputs, 0.0).astype(np.float64))
    chosen, rejected = scores[0::2], scores[1::2]
    pairs = max(len(chosen), 1)
    gap, total = chosen - rejected - margins, chosen + rejected
    of_sequence = np.empty(len(scores))
    of_sequence[0::2] = (2 * centering * total - _sigmoid(-gap)) / pairs
    of_sequence[1::2] = (2 * centering * total + _sigmoid(-gap)) / pairs
    return RowsObjective(
        np.where(mask, of_sequence[batch.sequence_of], 0.0),
        float((np.logaddexp(0, -gap) + centering * total**2).sum() / pairs),
        {
            "pairs": float(len(chosen)),
            "pair_accuracy": float((chosen > rejected).sum() / pairs),
            "margin": float((chosen - rejected).sum() / pairs),
            "chosen_score": float(chosen.sum() / pairs),
            "rejected_score": float(rejected.sum() / pairs),
        },
    )


def per_sequence(batch: TokenBatch, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums over each sequence's tokens, [sequences]."""
    sums = np.bincount(batch.sequence_of, weights=values, minlength=batch.sequences)
    return np.asarray(sums, np.float64)  # of no token at all they are integers


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0, -x))
