"""From rewards to advantages by token: shaping, baseline and scale, KL penalty, GAE, whitening, bound, teacher.

Pure, in float64, the same on every rank because every rank sees the whole batch. Each part is a module of its own; this
one owns the order, which is the one above, and which sequences train. docs/rl-training.md says how large an advantage
can become.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from areal_trainer.algorithms.baseline import BaselineOptions, normalised_rewards
from areal_trainer.algorithms.gae import gae, turn_gae
from areal_trainer.algorithms.kl import Estimator
from areal_trainer.algorithms.normalise import Normalise, normalise_advantages
from areal_trainer.algorithms.shaping import ShapingOptions, shape_rewards
from areal_trainer.algorithms.teacher import taught
from areal_trainer.algorithms.token_rewards import kl_penalty, token_rewards
from areal_trainer.data.batch import TokenBatch

Truncated = Literal["train", "neutral", "mask"]


@dataclass(frozen=True)
class RewardKL:
    """−β·κ(p − f) on every action token, as reward."""

    coefficient: float
    estimator: Estimator = "k1"


@dataclass(frozen=True)
class AdvantageOptions:
    """How rewards become advantages."""

    shaping: ShapingOptions = field(default_factory=ShapingOptions)
    baseline: BaselineOptions = field(default_factory=BaselineOptions)
    truncated: Truncated = "train"  # answers cut by length: as any other, with outcome 0, or not trained
    kl: RewardKL | None = None
    gamma: float = 1.0
    lam: float = 1.0
    by_turn: bool = False  # a step of GAE is a turn, not a token
    normalise: Normalise = "none"
    clip: float | None = None  # of an advantage, before the teacher's part
    teacher: float | None = None  # c: −c·(p − q) is added to each token's advantage; None without a teacher


@dataclass(frozen=True)
class Advantages:
    """Of one batch. `counted` entered the means; `trained` is False where a sequence carries no signal."""

    values: NDArray[np.float64]  # [S], normalised rewards: of the sequence as a whole
    tokens: NDArray[np.float64]  # [T]
    trained: NDArray[np.bool_]  # [S]
    counted: NDArray[np.bool_]  # [S]
    zero_variance_groups: int
    returns: NDArray[np.float64] | None = None  # [T], the critic's targets; None without a critic
    columns: "TokenColumns" = field(default_factory=lambda: TokenColumns())
    figures: Mapping[str, float] = field(default_factory=dict)  # that a recipe's `compute_advantages` named


@dataclass(frozen=True)
class TokenColumns:
    """What other models and passes say of each token, [T]; only what the options ask for."""

    proximal: NDArray[np.float32] | None = None
    reference: NDArray[np.float32] | None = None
    teacher_logprobs: NDArray[np.float32] | None = None
    values: NDArray[np.float64] | None = None  # of the critic, at the state before the token
    bootstrap: NDArray[np.float64] | None = None  # [S], the critic's value after the last token; 0 where it ended


def estimate_advantages(
    batch: TokenBatch, options: AdvantageOptions, columns: TokenColumns | None = None
) -> Advantages:
    """The advantages of a batch.

    Raises ValueError when a KL penalty or a teacher lacks the log-probabilities that it is made of.
    """
    columns = columns or TokenColumns()
    actions, sequence = batch.trainable(), batch.sequence_of
    lengths = np.bincount(sequence[actions], minlength=batch.sequences)
    shaped = shape_rewards(batch.rewards, lengths, options.shaping)
    outcomes = normalised_rewards(
        shaped, batch.group_ids, batch.sample_indices, batch.has_signal(), options.baseline, raw=batch.rewards
    )
    values, trained = outcomes.values, outcomes.trained
    if options.truncated == "neutral":
        values = np.where(batch.truncated, 0.0, values)
    elif options.truncated == "mask":
        trained = trained & ~batch.truncated
    tokens, returns = _estimated(values, batch, options, columns)
    mask = actions & trained[sequence]
    tokens = normalise_advantages(tokens, mask, batch.group_ids[sequence], options.normalise)
    if options.clip is not None:
        tokens = np.clip(tokens, -options.clip, options.clip)
    return Advantages(
        values=values,
        tokens=with_teacher(tokens, actions, options.teacher, columns),
        trained=trained,
        counted=outcomes.counted,
        zero_variance_groups=outcomes.zero_variance_groups,
        returns=None if columns.values is None else returns,
        columns=columns,
    )


def _estimated(
    outcomes: NDArray[np.float64], batch: TokenBatch, options: AdvantageOptions, columns: TokenColumns
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Advantages and returns of these outcomes and of the KL penalty, [tokens] each.

    By turn the penalty is each token's own: it is added after the recursion, and the critic doesn't learn it.
    """
    actions, offsets = batch.trainable(), batch.offsets
    penalty, coefficient = np.zeros(batch.tokens), 0.0
    if options.kl is not None:
        if columns.proximal is None or columns.reference is None:
            raise ValueError("a KL penalty needs the proximal and the reference log-probabilities")
        penalty = kl_penalty(columns.proximal, columns.reference, options.kl.estimator)
        coefficient = options.kl.coefficient
    if not options.by_turn:
        rewards = token_rewards(outcomes, actions, offsets, penalty, coefficient)
        return gae(
            rewards, columns.values, actions, offsets,
            gamma=options.gamma, lam=options.lam, bootstrap=columns.bootstrap,
        )  # fmt: skip
    rewards = token_rewards(outcomes, actions, offsets)
    tokens, returns = turn_gae(
        rewards, columns.values, actions, offsets, batch.turns,
        gamma=options.gamma, lam=options.lam, bootstrap=columns.bootstrap,
    )  # fmt: skip
    return np.where(actions, tokens - coefficient * penalty, 0.0), returns


def with_teacher(
    advantages: NDArray[np.float64], actions: NDArray[np.bool_], coefficient: float | None, columns: TokenColumns
) -> NDArray[np.float64]:
    """These advantages with the teacher's part, [tokens]; as they are without a teacher."""
    if coefficient is None:
        return advantages
    if columns.proximal is None or columns.teacher_logprobs is None:
        raise ValueError("a teacher needs its own and the proximal log-probabilities")
    return taught(advantages, actions, columns.proximal, columns.teacher_logprobs, coefficient)
