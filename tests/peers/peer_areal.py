"""AReaL's functions and ours of the same batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from areal_trainer.algorithms.advantages import OverlongPenalty, ShapingOptions, shape_rewards
from areal_trainer.algorithms.policy import PolicyOptions, Surrogate
from areal_trainer.algorithms.ratio import kl, log_linear
from areal_trainer.algorithms.rejection import RejectionRule, second_moment_mask
from areal_trainer.trainings.objective import PairLoss, dpo
from peer_batch import GROUP, LENGTH, PeerBatch, config
from peer_files import load
from peer_verl import critic

PPO = {"clip_low": 0.2, "clip_high": 0.28}


def _loss(b: PeerBatch, **how: Any) -> Any:
    old = b.behaviour if "rejection_sampling" in how else b.proximal
    advantages = how.pop("advantages", b.advantages)
    function = load("areal").ppo_actor_loss_fn
    return function(b.theta, b.proximal, old, advantages, 0.2, b.mask, eps_clip_higher=0.28, **how)[0]


def _sapo(b: PeerBatch) -> Any:
    ours = b.policy(PolicyOptions(Surrogate("sapo")))
    return ours, load("areal").sapo_loss_fn(b.theta, b.proximal, b.advantages, 1.0, 1.05, b.mask)[0]


def _rejecting(**rule: Any) -> PolicyOptions:
    return PolicyOptions(Surrogate(**PPO), rejection=(RejectionRule(**rule),))


def _rejection(b: PeerBatch, metric: str, upper: float, ours: str, **how: Any) -> Any:
    aggregate, level = how.get("aggregate", "mean"), how.get("level", "token")
    given = config(metric=metric, level=level, action="mask", agg=aggregate, upper=upper, lower=how.get("lower"))
    found = load("areal").apply_rejection_sampling(b.proximal, b.behaviour, b.mask, None, given).loss_mask
    return b.kept(metric=ours, level=level, aggregate=aggregate, upper=upper, lower=how.get("lower")), found


def _normalised(b: PeerBatch, ours: dict[str, Any], **theirs: Any) -> Any:
    usual = {"mean_leave1out": False, "std_unbiased": False, "group_size": GROUP, "eps": 1e-6}
    given = config(**{**usual, **theirs})
    found = load("areal_data").Normalization(given)(b.rewards)
    return b.outcomes(**ours)[:, 0], found


def _prox(b: PeerBatch, step: int) -> Any:
    flat = [each[b.mask] for each in (b.theta.detach(), b.behaviour)]
    versions = b.versions[b.mask]
    module = load("areal_actor")
    module.PROX_APPROX_METHOD_LOGLINEAR = name = "loglinear"
    theirs = module.compute_prox_logp_approximations(flat[1], flat[0], versions, 5, name)
    return log_linear(*flat, versions, step), theirs[name]


def _second_moment(b: PeerBatch) -> Any:
    proximal, behaviour = b.proximal[b.mask].numpy(), b.behaviour[b.mask].numpy()
    moment = np.square(behaviour - proximal)
    order = np.argsort(-moment, kind="stable")
    kept = load("areal_actor")._get_m2po_loss_mask(torch.from_numpy(moment[order]), 0.04)
    return torch.from_numpy(second_moment_mask(proximal, behaviour, 0.04)[order]).double(), kept.double()


def overlong(b: PeerBatch, longest: int) -> Any:
    penalty = OverlongPenalty(longest, 2, 0.5)
    return torch.from_numpy(shape_rewards(b.rewards.numpy(), b.mask.sum(1).numpy(), ShapingOptions(overlong=penalty)))


def _overlong(b: PeerBatch, longest: int) -> Any:
    data = {"rewards": b.rewards.clone(), "input_ids": b.labels, "loss_mask": b.mask}
    return overlong(b, longest), load("areal").reward_overlong_penalty(data, 2, 0.5, longest)["rewards"]


def pairs(b: PeerBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over answers of policy and reference, [pairs, 2]."""
    sums = [(each * b.mask).sum(1).reshape(-1, 2) for each in (b.theta, b.reference)]
    return sums[0], sums[1]


def preference(b: PeerBatch, options: PairLoss) -> torch.Tensor:
    """Our loss of pairs, whose gradient by each log-probability is the weights'."""
    tokens = b.tokens()
    logprobs = np.zeros((b.sequences, LENGTH + 1))
    logprobs[:, 1:] = (b.theta.detach() * b.mask).numpy()
    reference = (b.reference * b.mask).sum(1).numpy()
    found = dpo(tokens, logprobs.ravel(), reference, options)
    linear = (b.of_tokens(found.weights) * b.theta[b.mask]).sum()
    assert found.loss is not None
    return linear - linear.detach() + found.loss


def _dpo(b: PeerBatch) -> Any:
    policy, reference = pairs(b)
    logits = (policy[:, 0] - policy[:, 1]) - (reference[:, 0] - reference[:, 1])
    return preference(b, PairLoss(0.1)), load("areal").dpo_preference_loss(logits, beta=0.1).mean()


def _ipo(b: PeerBatch) -> Any:
    policy, reference = pairs(b)
    gaps = (policy - reference) / b.mask.sum(1).reshape(-1, 2)
    logits = gaps[:, 0] - gaps[:, 1]
    ours = preference(b, PairLoss(0.1, "ipo"))
    return ours, load("areal").dpo_preference_loss(logits, beta=0.1, loss_type="ipo").mean()


def _ratios(b: PeerBatch) -> Any:
    function, width = load("areal").dpo_pair_logratios, LENGTH + 1
    padded = [torch.cat([(each * b.mask), torch.zeros(b.sequences, 1)], 1).flatten() for each in (b.theta, b.reference)]
    mask = torch.cat([torch.zeros(b.sequences, 1, dtype=torch.bool), b.mask], 1).flatten()
    found = function(*padded, torch.arange(b.sequences + 1) * width, mask, torch.ones(4, dtype=torch.bool))
    policy, reference = pairs(b)
    return torch.stack([policy, reference]), torch.stack(found[:2])


def _critic(b: PeerBatch, kind: str) -> Any:
    given = [each.float() for each in (b.new_values, b.values, b.returns)]
    return critic(b, 0.2, kind), load("areal").ppo_critic_loss_fn(*given, 0.2, b.mask, kind)[0]


def _kl(b: PeerBatch, estimator: Any) -> Any:
    return kl(b.theta, b.reference, estimator), load("areal_data").KLEstimator(estimator)(b.theta, b.reference)


def _whitened(b: PeerBatch) -> Any:
    theirs = load("areal").masked_normalization(b.advantages, b.float_mask, unbiased=True)
    return b.whitened(b.advantages), theirs * b.mask


def _sequence(b: PeerBatch, advantages: Any) -> Any:
    ours = b.policy(PolicyOptions(Surrogate(**PPO), "sequence"), advantages)
    return ours, _loss(b, importance_sampling_level="sequence", advantages=advantages)


NAME = "AReaL "
ADAPTERS: dict[str, Any] = {
    NAME + "ppo_actor_loss_fn": lambda b: (b.policy(PolicyOptions(Surrogate(**PPO))), _loss(b)),
    NAME + "ppo_actor_loss_fn dual clip": lambda b: (
        b.policy(PolicyOptions(Surrogate(**PPO, dual_clip=1.5))), _loss(b, c_clip=1.5)
    ),
    NAME + "ppo_actor_loss_fn sequence, one advantage": lambda b: _sequence(b, b.by_sequence),
    NAME + "ppo_actor_loss_fn sequence, advantages by token": lambda b: _sequence(b, b.advantages),
    NAME + "ppo_actor_loss_fn rejection": lambda b: (
        b.policy(_rejecting(upper=1.2), coupled=False),
        _loss(b, rejection_sampling=config(metric="ratio", level="token", action="mask", upper=1.2, lower=None)),
    ),
    NAME + "ppo_actor_loss_fn without rejection": lambda b: (
        b.policy(PolicyOptions(Surrogate(**PPO)), coupled=False), _loss(b)
    ),
    NAME + "sapo_loss_fn": _sapo,
    NAME + "apply_rejection_sampling ratio": lambda b: _rejection(b, "ratio", 1.3, "ratio", lower=0.8),
    NAME + "apply_rejection_sampling k1": lambda b: _rejection(b, "kl_k1", 0.2, "k1"),
    NAME + "apply_rejection_sampling k2": lambda b: _rejection(b, "kl_k2", 0.05, "k2"),
    NAME + "apply_rejection_sampling k3": lambda b: _rejection(b, "kl_k3", 0.05, "k3"),
    NAME + "apply_rejection_sampling sequence mean": lambda b: _rejection(b, "ratio", 1.1, "ratio", level="sequence"),
    NAME + "apply_rejection_sampling sequence sum": lambda b: _rejection(
        b, "ratio", 1.2, "ratio", level="sequence", aggregate="sum"
    ),
    NAME + "apply_rejection_sampling sequence max": lambda b: _rejection(
        b, "ratio", 1.5, "ratio", level="sequence", aggregate="max"
    ),
    NAME + "Normalization group, group": lambda b: _normalised(b, {}, mean_level="group", std_level="group"),
    NAME + "Normalization group, batch": lambda b: _normalised(
        b, {"std": "batch"}, mean_level="group", std_level="batch"
    ),
    NAME + "Normalization batch, batch": lambda b: _normalised(
        b, {"mean": "batch", "std": "batch"}, mean_level="batch", std_level="batch"
    ),
    NAME + "Normalization none, group": lambda b: _normalised(b, {"mean": "none"}, mean_level=None, std_level="group"),
    NAME + "Normalization leave one out": lambda b: _normalised(
        b, {"std": "none", "leave_one_out": True}, mean_level="group", std_level=None, mean_leave1out=True
    ),
    NAME + "Normalization leave one out, group": lambda b: _normalised(
        b, {"leave_one_out": True}, mean_level="group", std_level="group", mean_leave1out=True
    ),
    NAME + "Normalization unbiased": lambda b: _normalised(
        b, {"unbiased": True}, mean_level="group", std_level="group", std_unbiased=True
    ),
    NAME + "KLEstimator k1": lambda b: _kl(b, "k1"),
    NAME + "KLEstimator k2": lambda b: _kl(b, "k2"),
    NAME + "KLEstimator k3": lambda b: _kl(b, "k3"),
    NAME + "masked_normalization": _whitened,
    NAME + "compute_prox_logp_approximations loglinear": lambda b: _prox(b, 4),
    NAME + "compute_prox_logp_approximations loglinear, the version before the update": lambda b: _prox(b, 5),
    NAME + "_get_m2po_loss_mask": _second_moment,
    NAME + "_compute_importance_weight": lambda b: (
        b.weight("token"), load("areal_actor")._compute_importance_weight(b.proximal, b.behaviour) * b.mask
    ),
    NAME + "reward_overlong_penalty": lambda b: _overlong(b, LENGTH),
    NAME + "reward_overlong_penalty beyond maxTokens": lambda b: _overlong(b, 4),
    NAME + "dpo_preference_loss": _dpo,
    NAME + "dpo_preference_loss ipo": _ipo,
    NAME + "dpo_pair_logratios": _ratios,
    NAME + "ppo_critic_loss_fn": lambda b: _critic(b, "mse"),
    NAME + "ppo_critic_loss_fn huber": lambda b: _critic(b, "huber"),
}  # fmt: skip
