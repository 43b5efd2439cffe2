"""From rewards to advantages by token: shaping, baseline and scale, KL penalty, GAE, whitening, bound, teacher.

Pure, in float64, the same on every rank because every rank sees the whole batch. Each part is a module of its own; this
one owns the order, which is the one above, and which sequences train. docs/rl-training.md says how large an advantage
can become.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from areal_trainer.algorithms.baseline import BaselineOptions, normalised_rewards
from areal_trainer.algorithms.ratio import Estimator, kl
from areal_trainer.data.batch import TokenBatch

# ---- Reward shaping: overlong penalty, bias, scale and clipping, before any baseline
# Whether a group is flat is decided from the raw rewards, so shaping never makes a signal of a flat group.


@dataclass(frozen=True)
class OverlongPenalty:
    """Soft punishment of long answers (DAPO, arXiv 2503.14476, eq. 13): from 0 down to −factor, and no lower."""

    max_tokens: int  # L_max: the longest answer that is expected
    window: int  # L_win: from L_max − L_win on, the penalty grows linearly
    factor: float = 1.0  # the penalty at L_max and beyond

    def __post_init__(self) -> None:
        if self.window < 1 or self.max_tokens < self.window:
            raise ValueError(f"an overlong window of {self.window} doesn't fit into {self.max_tokens} tokens")


@dataclass(frozen=True)
class ShapingOptions:
    """r ← clip((r + penalty + bias)·scale, ±clip); the defaults change nothing."""

    bias: float = 0.0
    scale: float = 1.0
    clip: float | None = None
    overlong: OverlongPenalty | None = None


def shape_rewards(
    rewards: NDArray[np.float64], action_tokens: NDArray[np.int64], options: ShapingOptions
) -> NDArray[np.float64]:
    """The shaped rewards, [sequences].

    Args:
        rewards: raw, [sequences]
        action_tokens: sampled tokens of each sequence, [sequences]
    """
    shaped: NDArray[np.float64] = np.array(rewards, dtype=np.float64)
    if options.overlong is not None:
        limit = options.overlong
        over = action_tokens - (limit.max_tokens - limit.window)
        shaped = shaped - np.clip(over / limit.window, 0.0, 1.0) * limit.factor
    shaped = (shaped + options.bias) * options.scale
    return shaped if options.clip is None else np.clip(shaped, -options.clip, options.clip)


# ---- Whitening of advantages over the tokens of a batch or of each group
# Pure, in float64. Token-weighted: a long sequence weighs more. Done once for the whole batch, before it is cut into
# mini-batches, so every rank and every cut sees the same.


Normalise = Literal["none", "batch", "group"]

EPSILON = 1e-5  # added to the deviation


def normalise_advantages(
    advantages: NDArray[np.float64], mask: NDArray[np.bool_], groups: NDArray[np.int64], level: Normalise
) -> NDArray[np.float64]:
    """(A − μ)/(σ + 1e-5) over the tokens of `mask`, σ with Bessel's correction; 0 off the mask. [tokens].

    Args:
        advantages: [tokens]
        mask: tokens that are trained, [tokens]
        groups: the group of each token, any integers, [tokens]
    """
    if level == "none":
        return advantages
    chosen = advantages[mask]
    member = np.zeros(len(chosen), np.int64)
    if level == "group":
        member = np.unique(groups[mask], return_inverse=True)[1].reshape(-1)
    size = np.maximum(np.bincount(member), 1)
    mean = np.bincount(member, chosen) / size
    centred = chosen - mean[member]
    deviation = np.sqrt(np.bincount(member, centred * centred) / np.maximum(size - 1, 1))
    whitened = np.zeros_like(advantages)
    whitened[mask] = centred / (deviation[member] + EPSILON)
    return whitened


# ---- From rewards to advantages by token: shaping, baseline and scale, KL penalty, GAE, whitening, bound, teacher


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


# ---- Generalised advantage estimation (GAE, arXiv 1506.02438) over packed sequences, by token or by turn
# Pure, in float64. Only action tokens are steps: prompt, tool and feedback tokens between them are skipped, not
# discounted. By turn, an answer is one step, however long it is.


def gae(
    rewards: NDArray[np.float64],
    values: NDArray[np.float64] | None,
    actions: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    *,
    gamma: float = 1.0,
    lam: float | NDArray[np.float64] = 1.0,
    bootstrap: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Advantages A and returns G = A + V, [tokens] each, 0 off the action tokens.

        A_{K+1} = 0;  V_{K+1} = bootstrap;  for k = K … 1:  δ = R_k + γV_{k+1} − V_k;  A_k = δ + γλA_{k+1}

    Args:
        rewards: [tokens]
        values: V of the state before each token, [tokens]; None is 0 everywhere
        actions: [tokens]
        offsets: [sequences + 1]
        lam: λ, one number or one a sequence
        bootstrap: V of the state after the last token, [sequences]: 0 where the episode ended by itself, the critic's
            value where it was cut by length; None is 0
    """
    sequences = len(offsets) - 1
    places = np.flatnonzero(actions)
    owner = np.searchsorted(offsets, places, side="right") - 1
    steps = np.bincount(owner, minlength=sequences)
    longest = int(steps.max(initial=0))
    # Right-aligned, so that every sequence's last step is in the last column and one loop serves all.
    within = np.arange(len(places)) - np.repeat(np.cumsum(steps) - steps, steps)
    column = longest - steps[owner] + within
    reward = np.zeros((sequences, longest + 1))
    value = np.zeros((sequences, longest + 1))
    reward[owner, column] = rewards[places]
    if values is not None:
        value[owner, column] = values[places]
    if bootstrap is not None:
        value[:, longest] = bootstrap
    decay = gamma * np.asarray(lam, dtype=np.float64)
    advantage = np.zeros((sequences, longest + 1))
    for k in range(longest - 1, -1, -1):
        delta = reward[:, k] + gamma * value[:, k + 1] - value[:, k]
        advantage[:, k] = delta + decay * advantage[:, k + 1]
    advantages = np.zeros(len(actions))
    returns = np.zeros(len(actions))
    advantages[places] = advantage[owner, column]
    returns[places] = (advantage + value)[owner, column]
    return advantages, returns


def turn_gae(
    rewards: NDArray[np.float64],
    values: NDArray[np.float64] | None,
    actions: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    turns: NDArray[np.int64],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`gae` whose steps are turns: one has the sum of its rewards and the value at its *first* action token.

    All action tokens of a turn get its advantage A and its return G = A + V.

    Args:
        turns: the turn of each token, numbers that grow along the batch and are no other sequence's, [tokens]
    """
    places = np.flatnonzero(actions)
    _, first, turn = np.unique(turns[places], return_index=True, return_inverse=True)
    begins = np.zeros(len(actions), np.bool_)
    begins[places[first]] = True
    summed = np.zeros(len(actions))
    summed[begins] = np.bincount(turn, rewards[places], len(first))
    by_turn = gae(summed, values, begins, offsets, gamma=gamma, lam=lam, bootstrap=bootstrap)
    advantages, returns = np.zeros(len(actions)), np.zeros(len(actions))
    advantages[places], returns[places] = (found[places[first]][turn] for found in by_turn)
    return advantages, returns


# ---- Rewards by token: the outcome on the last action token, a KL penalty against a reference on each
# Pure, in float64. The penalty is of the policy that is improved, so it reads the proximal log-probabilities.


_LARGEST = 10.0  # of one token's penalty: k3 of an impossible token would outweigh everything


def kl_penalty(
    proximal: NDArray[np.float32], reference: NDArray[np.float32], estimator: Estimator
) -> NDArray[np.float64]:
    """κ(p − f) by token, limited to ±10, [tokens]."""
    ours, theirs = (torch.from_numpy(np.asarray(values, np.float64)) for values in (proximal, reference))
    penalty: NDArray[np.float64] = kl(ours, theirs, estimator).clamp(-_LARGEST, _LARGEST).numpy()
    return penalty


def last_actions(actions: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each sequence's last action token, [sequences]; −1 where a sequence has none."""
    places = np.where(actions, np.arange(len(actions)), -1)
    last = np.full(len(offsets) - 1, -1, np.int64)
    np.maximum.at(last, np.repeat(np.arange(len(last)), np.diff(offsets)), places)
    return last


def token_rewards(
    outcomes: NDArray[np.float64],
    actions: NDArray[np.bool_],
    offsets: NDArray[np.int64],
    penalty: NDArray[np.float64] | None = None,
    coefficient: float = 0.0,
) -> NDArray[np.float64]:
    """R_j = −β·κ_j on every action token, plus the outcome on the last one; 0 elsewhere. [tokens].

    Args:
        outcomes: normalised rewards, [sequences]
        actions: True for tokens the policy sampled, [tokens]
        offsets: [sequences + 1]
        penalty: κ, [tokens]
        coefficient: β
    """
    rewards = np.zeros(len(actions), np.float64)
    if penalty is not None:
        rewards[actions] = -coefficient * penalty[actions]
    last = last_actions(actions, offsets)
    held = last >= 0
    rewards[last[held]] += outcomes[held]
    return rewards


# ---- On-policy distillation: a teacher's view of the sampled tokens as an advantage (arXiv 2306.13649, 2506.02208)
# Pure, in float64. Over tokens that the policy samples, the expectation of (p_j − q_j)·∇ log π(token j), with p_j − q_j
# constant, is the gradient of the reverse KL of the policy from the teacher at place j: each token answers for itself,
# later ones change nothing (discount 0). As a loss with its gradient, the mean of p − q would have an expected gradient
# of 0.


_LARGEST_OF_TEACHER = 20.0  # of a log-ratio: one impossible token would outweigh the batch


def taught(
    advantages: NDArray[np.float64],
    actions: NDArray[np.bool_],
    policy: NDArray[np.float32],
    teacher: NDArray[np.float32],
    coefficient: float,
) -> NDArray[np.float64]:
    """A_j − c·clip(p_j − q_j, ±20) on every action token, the given advantages elsewhere. [tokens].

    Args:
        advantages: of the rewards, normalised already: normalising afterwards would rescale the teacher's part
        actions: True for tokens the policy sampled
        policy: p, log-probabilities under the policy before the update
        teacher: q, the same tokens' under the teacher
        coefficient: c
    """
    gap = policy.astype(np.float64) - teacher.astype(np.float64)
    return np.where(
        actions, advantages - coefficient * np.clip(gap, -_LARGEST_OF_TEACHER, _LARGEST_OF_TEACHER), advantages
    )


def teacher_kl(trained: NDArray[np.bool_], policy: NDArray[np.float32], teacher: NDArray[np.float32]) -> float | None:
    """Mean of p − q over the trained tokens, an estimate of KL(π‖teacher) a token; None where none is trained."""
    gap = policy[trained].astype(np.float64) - teacher[trained].astype(np.float64)
    return float(gap.mean()) if gap.size else None
