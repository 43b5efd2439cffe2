"""Functions of OpenRLHF, SkyRL, prime-rl and TRL, and ours of the same batch."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from areal_trainer.algorithms.advantages import OverlongPenalty, ShapingOptions, shape_rewards, token_rewards
from areal_trainer.algorithms.policy import PolicyOptions, Surrogate
from areal_trainer.algorithms.ratio import WeightTruncation, kl
from areal_trainer.algorithms.rejection import DPPOOptions, RejectionRule
from areal_trainer.trainings.objective import PairLoss, bradley_terry, sft
from peer_areal import overlong, pairs, preference
from peer_batch import LENGTH, PeerBatch, config
from peer_files import load
from peer_verl import critic, entropies, logprobs

PPO = {"clip_low": 0.2, "clip_high": 0.28}
CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
TIS = {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.8, 1.25]}


# ---- OpenRLHF


def _openrlhf(b: PeerBatch, advantages: Any = None, **how: Any) -> Any:
    module = load("openrlhf").PolicyLoss(**CLIP, **how)
    chosen = b.advantages if advantages is None else advantages
    return module(b.theta, b.proximal, chosen, b.float_mask, b.behaviour)[0]


def _decoupled(b: PeerBatch, **how: Any) -> Any:
    return b.policy(PolicyOptions(Surrogate(**PPO), **how), coupled=False)


def _value(b: PeerBatch, clip: float | None) -> Any:
    return critic(b, clip), load("openrlhf").ValueLoss(clip)(b.new_values, b.values, b.returns, b.float_mask)


def _sft(b: PeerBatch, *, by_token: bool) -> Any:
    weights = sft(b.tokens(), "token" if by_token else "sequence").weights
    ours = (b.of_tokens(weights) * b.theta[b.mask]).sum()
    return ours, load("openrlhf").SFTLoss(by_token)(b.theta, b.float_mask)


def _dpo(b: PeerBatch, smoothing: float) -> Any:
    policy, reference = pairs(b)
    found = load("openrlhf").DPOLoss(0.1, smoothing)(policy[:, 0], policy[:, 1], reference[:, 0], reference[:, 1])[0]
    return preference(b, PairLoss(0.1, label_smoothing=smoothing)), found


def _pairs_of_scores(b: PeerBatch) -> Any:
    tokens = b.tokens()
    last = (tokens.loss_mask.reshape(b.sequences, -1) * np.arange(1, LENGTH + 2)).argmax(1)
    place = np.arange(b.sequences) * (LENGTH + 1) + last
    mask = np.zeros(tokens.tokens, bool)
    mask[place] = True
    outputs = np.zeros(tokens.tokens)
    outputs[place] = b.scores.detach().numpy().ravel()
    only = type(tokens)(**{**vars(tokens), "loss_mask": mask})
    found = bradley_terry(only, outputs, np.full(4, 0.25))
    assert found.loss is not None
    linear = (torch.from_numpy(found.weights[place]) * b.scores.flatten()).sum()
    theirs = load("openrlhf").PairWiseLoss()(b.scores[:, 0], b.scores[:, 1], torch.full((4,), 0.25))
    return linear - linear.detach() + found.loss, theirs


def _kl_in_reward(b: PeerBatch) -> Any:
    penalty = kl(b.proximal, b.reference, "k1").numpy().ravel()
    ours = token_rewards(b.rewards.numpy(), b.mask.numpy().ravel(), b.offsets, penalty, 0.1)
    theirs = load("openrlhf_math").compute_reward(b.rewards, 0.1, kl(b.proximal, b.reference, "k1"), b.mask)
    return torch.from_numpy(ours).reshape(b.mask.shape), theirs * b.mask


def _their_gae(b: PeerBatch) -> Any:
    maker = load("openrlhf_maker").RemoteExperienceMaker
    theirs = maker.get_advantages_and_returns(None, b.values, b.token_rewards, b.mask, 0.9, 0.8)
    return torch.stack(b.estimated(0.9, 0.8)), torch.stack([each * b.mask for each in theirs])


def _their_returns(b: PeerBatch, gamma: float) -> Any:
    maker = load("openrlhf_maker").RemoteExperienceMaker
    theirs = maker.get_cumulative_returns(None, b.token_rewards, b.mask, gamma)
    return b.estimated(gamma, 1.0, values=False)[0], theirs * b.mask


def _their_overlong(b: PeerBatch) -> Any:
    answers = SimpleNamespace(response_length=b.mask.sum(1), rewards=b.rewards.clone())
    load("openrlhf_length").apply_overlong_penalty([answers], 4, 2, 0.5)
    return overlong(b, 4), answers.rewards


# ---- SkyRL


def _skyrl(name: str, b: PeerBatch, **fields: Any) -> Any:
    usual = {
        "policy_loss_type": "regular", "eps_clip_low": 0.2, "eps_clip_high": 0.28, "clip_ratio_c": 3.0,
        "loss_reduction": "sequence_mean", "sapo": config(tau_pos=1.0, tau_neg=1.05), "off_policy_correction": None,
        "cispo": config(cispo_anchor="old", cispo_eps_clip_low=1.0, cispo_eps_clip_high=4.0),
        "dppo": config(dppo_type="binary_tv", delta_low=0.2, delta_high=0.28),
    }  # fmt: skip
    given = config(**{**usual, **fields})
    found = getattr(load("skyrl"), name)(b.theta, b.proximal, b.advantages, given, b.float_mask)[0]
    return found / b.mask.sum()


def _skyrl_outcome(name: str, b: PeerBatch, ours: Any, **how: Any) -> Any:
    found = getattr(load("skyrl"), f"compute_{name}")(b.token_rewards, b.float_mask, index=b.groups, **how)
    return ours, found[0]


def _positive(b: PeerBatch) -> PeerBatch:
    b.rewards = b.rewards.abs()
    return b


def _skyrl_gae(b: PeerBatch) -> Any:
    ours, _ = b.estimated(0.9, 0.8)
    theirs, _ = load("skyrl").compute_gae_advantage_return(b.token_rewards, b.values, b.float_mask, 0.9, 0.8)
    return b.whitened(ours), theirs * b.mask


def _skyrl_mask(b: PeerBatch, metric: str, aggregate: str) -> Any:
    bounds = config(geo_mask_low=0.9, geo_mask_high=1.1, product_mask_low=0.9, product_mask_high=1.1)
    found = load("skyrl_correction").compute_sequence_mask(b.proximal, b.behaviour, b.float_mask, metric, bounds)[0]
    return b.kept(level="sequence", aggregate=aggregate, lower=0.9, upper=1.1), found * b.mask


def _skyrl_tokens(b: PeerBatch) -> Any:
    bounds = config(token_mask_is_threshold_low=0.8, token_mask_is_threshold_high=1.3)
    found = load("skyrl_correction").compute_token_mask(b.proximal, b.behaviour, b.float_mask, bounds)[0]
    return b.kept(lower=0.8, upper=1.3), found * b.mask


def _skyrl_weight(b: PeerBatch, level: str, ours: str) -> Any:
    caps = config(token_tis_ratio_clip_high=1.5, sequence_tis_ratio_clip_high=1.5)
    found = load("skyrl_correction").compute_tis_ratio(b.proximal, b.behaviour, b.float_mask, level, caps)[0]
    return b.weight(ours, WeightTruncation(1.5)), found * b.mask


# ---- prime-rl


def _prime_rl(b: PeerBatch, tau: float) -> Any:
    module = load("prime_rl")
    flat = [each[b.mask] for each in (b.theta, b.proximal, b.advantages)]
    given = module.LossInputs(flat[0], flat[1], None, flat[2], torch.ones(len(flat[0]), dtype=torch.bool))
    losses = config(dppo_mask_high=0.28, dppo_mask_low=0.2, adv_tau=1.0, kl_tau=tau)
    theirs = module.default_loss_fn(given, losses).loss / b.mask.sum()
    return b.policy(PolicyOptions(DPPOOptions("tv", 0.2, 0.28, tau))), theirs


def _prime_rl_cross_entropy(b: PeerBatch) -> Any:
    module, logprobs_ = load("prime_rl"), b.theta[b.mask]
    given = module.LossInputs(logprobs_, logprobs_, None, logprobs_, torch.ones(len(logprobs_), dtype=torch.bool))
    weights = sft(b.tokens(), "token").weights
    return (b.of_tokens(weights) * logprobs_).sum(), module.ce_loss_fn(given).loss / b.mask.sum()


def _prime_rl_mismatch(b: PeerBatch) -> Any:
    theirs = load("prime_rl").compute_importance_ratio_and_mismatch_kl(b.theta, b.proximal)[2]
    return kl(b.proximal, b.theta, "k3"), theirs


def _prime_rl_group(b: PeerBatch, module: str, name: str, **ours: Any) -> Any:
    """Their groups as they score them, one after the other."""
    found: dict[int, float] = {}
    loaded = load(module)
    loaded.iter_trainable_traces = lambda traces: ((None, trace) for trace in traces)
    loaded.assign_advantages = lambda trace, value: found.update({trace.at: value})
    for group in np.unique(b.groups):
        members = [SimpleNamespace(at=at, reward=float(b.rewards[at])) for at in np.flatnonzero(b.groups == group)]
        asyncio.run(getattr(loaded, name).score_group(SimpleNamespace(length_penalty=None), members))
    theirs = torch.tensor([found[at] for at in range(b.sequences)], dtype=torch.float64)
    return b.outcomes(**ours), theirs[:, None] * b.mask


# ---- TRL


def _trl_overlong(b: PeerBatch) -> Any:
    answers = [[0] * int(count) for count in b.mask.sum(1)]
    theirs = load("trl_rewards").get_soft_overlong_punishment(4, 2)(answers)
    shaped = shape_rewards(np.zeros(b.sequences), b.mask.sum(1).numpy(), ShapingOptions(overlong=OverlongPenalty(4, 2)))
    return torch.from_numpy(shaped), torch.tensor(theirs, dtype=torch.float64)


def _trl_batch_scale(b: PeerBatch) -> Any:
    """GRPOTrainer's scale_rewards: batch, of its own nanstd."""
    deviation = load("trl").nanstd(b.rewards)
    means = torch.from_numpy(b.rewards.numpy().reshape(2, -1).mean(1).repeat(b.sequences // 2))
    theirs = ((b.rewards - means) / (deviation + 1e-4))[:, None] * b.mask
    return b.outcomes(std="batch", unbiased=True, epsilon=1e-4), theirs


def _trl_group_scale(b: PeerBatch) -> Any:
    by_group = b.rewards.reshape(2, -1)
    deviation = load("trl").nanstd(by_group, dim=1, keepdim=True)
    theirs = ((by_group - by_group.mean(1, keepdim=True)) / (deviation + 1e-4)).reshape(-1, 1) * b.mask
    return b.outcomes(unbiased=True, epsilon=1e-4), theirs


def _kls(name: str, function: Any) -> dict[str, Any]:
    def adapter(estimator: Any) -> Any:
        return lambda b: (kl(b.theta, b.reference, estimator), function(b, estimator))

    return {f"{name} {estimator}": adapter(estimator) for estimator in ("k1", "k2", "k3")}


OPEN, SKY, PRIME, TRL = "OpenRLHF ", "SkyRL ", "prime-rl ", "TRL "
ADAPTERS: dict[str, Any] = {
    OPEN + "PolicyLoss": lambda b: (b.policy(PolicyOptions(Surrogate(**PPO))), _openrlhf(b)),
    OPEN + "PolicyLoss dual clip": lambda b: (
        b.policy(PolicyOptions(Surrogate(**PPO, dual_clip=1.5))), _openrlhf(b, dual_clip=1.5)
    ),
    OPEN + "PolicyLoss gspo, one advantage": lambda b: (
        b.policy(PolicyOptions(Surrogate(**PPO), "sequence"), b.by_sequence, aggregation="sequence"),
        _openrlhf(b, b.by_sequence, policy_loss_type="gspo"),
    ),
    OPEN + "PolicyLoss gspo, advantages by token": lambda b: (
        b.policy(PolicyOptions(Surrogate(**PPO), "sequence"), aggregation="sequence"),
        _openrlhf(b, policy_loss_type="gspo"),
    ),
    OPEN + "PolicyLoss tis": lambda b: (_decoupled(b, truncate=WeightTruncation(1.25, 0.8)), _openrlhf(b, **TIS)),
    OPEN + "PolicyLoss icepop": lambda b: (
        _decoupled(b, rejection=(RejectionRule(lower=0.8, upper=1.25),)),
        _openrlhf(b, **TIS, vllm_is_correction_type="icepop"),
    ),
    OPEN + "PolicyLoss seq-mask-tis": lambda b: (
        _decoupled(b, rejection=(RejectionRule(level="sequence", lower=0.8, upper=1.25),)),
        _openrlhf(b, **TIS, vllm_is_correction_type="seq-mask-tis"),
    ),
    OPEN + "ValueLoss": lambda b: _value(b, 0.2),
    OPEN + "ValueLoss without clip": lambda b: _value(b, None),
    OPEN + "SFTLoss": lambda b: _sft(b, by_token=True),
    OPEN + "SFTLoss by sequence": lambda b: _sft(b, by_token=False),
    OPEN + "DPOLoss": lambda b: _dpo(b, 0.0),
    OPEN + "DPOLoss label smoothing": lambda b: _dpo(b, 0.1),
    OPEN + "PairWiseLoss": _pairs_of_scores,
    OPEN + "aggregate_loss": lambda b: (
        b.summed(b.theta[b.mask]), load("openrlhf").aggregate_loss(b.theta, b.float_mask)
    ),
    OPEN + "aggregate_loss by sequence": lambda b: (
        b.summed(b.theta[b.mask], "sequence"), load("openrlhf").aggregate_loss(b.theta, b.float_mask, False)
    ),
    **_kls(OPEN + "compute_approx_kl", lambda b, e: load("openrlhf_math").compute_approx_kl(b.theta, b.reference, e)),
    OPEN + "compute_reward": _kl_in_reward,
    OPEN + "masked_mean": lambda b: (
        b.summed(b.theta[b.mask]), load("openrlhf_math").masked_mean(b.theta, b.float_mask)
    ),
    OPEN + "log_probs_from_logits": lambda b: (
        logprobs(b), load("openrlhf_math").log_probs_from_logits(b.logits, b.labels)
    ),
    OPEN + "compute_entropy": lambda b: (entropies(b), load("openrlhf_math").compute_entropy(b.logits)),
    OPEN + "get_advantages_and_returns, whole answers": _their_gae,
    OPEN + "get_advantages_and_returns": _their_gae,
    OPEN + "get_cumulative_returns": lambda b: _their_returns(b, 1.0),
    OPEN + "get_cumulative_returns, whole answers": lambda b: _their_returns(b, 0.9),
    OPEN + "get_cumulative_returns with a discount": lambda b: _their_returns(b, 0.9),
    OPEN + "apply_overlong_penalty": _their_overlong,
    SKY + "ppo_policy_loss": lambda b: (b.policy(PolicyOptions(Surrogate(**PPO))), _skyrl("ppo_policy_loss", b)),
    SKY + "ppo_policy_loss dual clip": lambda b: (
        b.policy(PolicyOptions(Surrogate(**PPO, dual_clip=3.0))),
        _skyrl("ppo_policy_loss", b, policy_loss_type="dual_clip"),
    ),
    SKY + "gspo_policy_loss": lambda b: (
        b.policy(PolicyOptions(Surrogate(**PPO), "sequence")), _skyrl("gspo_policy_loss", b)
    ),
    SKY + "sapo_policy_loss": lambda b: (b.policy(PolicyOptions(Surrogate("sapo"))), _skyrl("sapo_policy_loss", b)),
    SKY + "compute_policy_loss_cispo": lambda b: (
        b.policy(PolicyOptions(Surrogate("cispo", 1.0, 4.0))), _skyrl("compute_policy_loss_cispo", b)
    ),
    SKY + "dppo_policy_loss binary_tv": lambda b: (
        b.policy(PolicyOptions(DPPOOptions("tv", 0.2, 0.28))), _skyrl("dppo_policy_loss", b)
    ),
    SKY + "dppo_policy_loss binary_kl": lambda b: (
        b.policy(PolicyOptions(DPPOOptions("binaryKl", 0.05, 0.08))),
        _skyrl("dppo_policy_loss", b, dppo=config(dppo_type="binary_kl", delta_low=0.05, delta_high=0.08)),
    ),
    SKY + "ppo_critic_loss": lambda b: (
        critic(b),
        load("skyrl").ppo_critic_loss(b.new_values, b.values, b.returns, config(value_clip=0.2), b.float_mask)[0],
    ),
    **_kls(SKY + "compute_approx_kl", lambda b, e: load("skyrl").compute_approx_kl(b.theta, b.reference, None, e)),
    SKY + "masked_whiten": lambda b: (
        b.whitened(b.advantages), load("skyrl").masked_whiten(b.advantages, b.float_mask) * b.mask
    ),
    SKY + "compute_grpo_outcome_advantage": lambda b: _skyrl_outcome(
        "grpo_outcome_advantage", b, b.outcomes(unbiased=True)
    ),
    SKY + "compute_rloo_outcome_advantage": lambda b: _skyrl_outcome(
        "rloo_outcome_advantage", b, b.outcomes(std="none", leave_one_out=True)
    ),
    SKY + "compute_maxrl_advantage": lambda b: _skyrl_outcome("maxrl_advantage", _positive(b), b.outcomes(std="mean")),
    SKY + "compute_reinforce_plus_plus_outcome_advantage": lambda b: _skyrl_outcome(
        "reinforce_plus_plus_outcome_advantage", b, b.whitened(b.estimated(0.9, 1.0, values=False)[0]), gamma=0.9
    ),
    SKY + "compute_gae_advantage_return": _skyrl_gae,
    SKY + "compute_sequence_mask geometric": lambda b: _skyrl_mask(b, "geometric", "mean"),
    SKY + "compute_sequence_mask product": lambda b: _skyrl_mask(b, "product", "sum"),
    SKY + "compute_token_mask": _skyrl_tokens,
    SKY + "compute_tis_ratio token": lambda b: _skyrl_weight(b, "token", "token"),
    SKY + "compute_tis_ratio sequence": lambda b: _skyrl_weight(b, "sequence", "sequenceProduct"),
    PRIME + "default_loss_fn": lambda b: _prime_rl(b, 1e-3),
    PRIME + "ce_loss_fn": _prime_rl_cross_entropy,
    PRIME + "compute_importance_ratio_and_mismatch_kl": _prime_rl_mismatch,
    PRIME + "selective_log_softmax": lambda b: (
        logprobs(b), load("prime_rl").selective_log_softmax(b.logits, b.labels)
    ),
    PRIME + "compute_entropy": lambda b: (entropies(b), load("prime_rl").compute_entropy(b.logits)),
    PRIME + "GRPOAlgorithm.score_group": lambda b: _prime_rl_group(b, "prime_rl_grpo", "GRPOAlgorithm", std="none"),
    PRIME + "MaxRLAlgorithm.score_group": lambda b: _prime_rl_group(
        _positive(b), "prime_rl_maxrl", "MaxRLAlgorithm", std="mean"
    ),
    TRL + "get_soft_overlong_punishment": _trl_overlong,
    TRL + "selective_log_softmax": lambda b: (logprobs(b), load("trl").selective_log_softmax(b.logits, b.labels)),
    TRL + "entropy_from_logits": lambda b: (entropies(b), load("trl").entropy_from_logits(b.logits)),
    TRL + "nanstd, the group's scale": _trl_group_scale,
    TRL + "nanstd, the batch's scale": _trl_batch_scale,
    TRL + "masked_mean": lambda b: (b.summed(b.theta[b.mask]), load("trl_ppo").masked_mean(b.theta, b.float_mask)),
    TRL + "masked_whiten": lambda b: (
        b.whitened(b.advantages), load("trl_ppo").masked_whiten(b.advantages, b.float_mask) * b.mask
    ),
}  # fmt: skip
