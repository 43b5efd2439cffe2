"""verl's functions and ours of the same batch. Each adapter gives (ours, theirs), of which gradients are taken too."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from areal_trainer.algorithms.policy import PolicyOptions, Surrogate, ValueOptions, value_loss
from areal_trainer.algorithms.ratio import WeightTruncation, kl, kl_loss
from areal_trainer.algorithms.rejection import DPPOOptions, RejectionRule
from areal_trainer.engine.logprob import chunked_logprobs
from peer_batch import VOCABULARY, PeerBatch, config, slopes
from peer_files import load

CLIP = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "global_batch_info": {}}
PPO = Surrogate(clip_low=0.2, clip_high=0.28, dual_clip=3.0)


def _policy(name: str, b: PeerBatch, advantages: Any = None, **fields: Any) -> Any:
    module = load("verl")
    given = config(**{**CLIP, **fields})
    module.ActorConfig, module.AlgoConfig = type(given), type("AlgoConfig", (), {})
    chosen = b.advantages if advantages is None else advantages
    return getattr(module, f"compute_policy_loss_{name}")(b.proximal, b.theta, chosen, b.float_mask, config=given)[0]


def _kl(b: PeerBatch, ours: str, theirs: str, function: str = "kl_penalty") -> Any:
    found = getattr(load("verl"), function)(b.theta, b.reference, theirs)
    return kl(b.theta, b.reference, ours), found


def _ours_of_logits(b: PeerBatch) -> Any:
    hidden = b.logits.reshape(-1, VOCABULARY).float()
    return chunked_logprobs(hidden, torch.eye(VOCABULARY), b.labels.reshape(-1), 1.0)


def logprobs(b: PeerBatch) -> Any:
    return _ours_of_logits(b)[0].reshape(b.mask.shape).double()


def entropies(b: PeerBatch) -> Any:
    return _ours_of_logits(b)[1].reshape(b.mask.shape).double()


def critic(b: PeerBatch, clip: float | None = 0.2, kind: Any = "mse") -> Any:
    found, _ = value_loss(b.new_values[b.mask], b.values[b.mask], b.returns[b.mask], ValueOptions(clip, kind))
    return b.summed(found)


def _gae(b: PeerBatch) -> Any:
    ours, returns = b.estimated(0.9, 0.8)
    theirs, their_returns = load("verl").compute_gae_advantage_return(b.token_rewards, b.values, b.float_mask, 0.9, 0.8)
    return torch.stack([b.whitened(ours), returns * b.mask]), torch.stack([theirs * b.mask, their_returns * b.mask])


def _outcome(name: str, b: PeerBatch, ours: Any, **how: Any) -> Any:
    function = getattr(load("verl"), f"compute_{name}_outcome_advantage")
    return ours, function(b.token_rewards, b.float_mask, index=b.groups, **how)[0]


def _plus_plus(b: PeerBatch) -> Any:
    ours = b.whitened(b.estimated(0.9, 1.0, values=False)[0])
    function = load("verl").compute_reinforce_plus_plus_outcome_advantage
    return ours, function(b.token_rewards, b.float_mask, config=config(gamma=0.9))[0]


def _rejected(b: PeerBatch, mode: str, threshold: Any, **rule: Any) -> Any:
    found = load("verl_correction").compute_rollout_rejection_mask(
        b.proximal - b.behaviour, b.float_mask, mode, threshold
    )
    return b.kept(**rule), found[0]


def _weights(b: PeerBatch, mode: str, level: str) -> Any:
    found = load("verl_correction").compute_rollout_correction_weights(
        b.proximal - b.behaviour, b.float_mask, mode, 2.0
    )
    return b.weight(level, WeightTruncation(2.0)), found[0]


def _summed(b: PeerBatch, mode: str, ours: Any, **how: Any) -> Any:
    return b.summed(b.theta[b.mask], ours, **how), load("verl").agg_loss(b.theta, b.float_mask, mode)


def _whitened(b: PeerBatch) -> Any:
    return b.whitened(b.advantages), load("verl_math").masked_whiten(b.advantages, b.float_mask) * b.mask


def _groups_of_one(b: PeerBatch) -> Any:
    b.groups = np.arange(b.sequences)
    return _outcome("grpo", b, b.outcomes())


def _after_rejection(b: PeerBatch) -> Any:
    """Their loss over the mask that their rejection left."""
    ours = b.policy(PolicyOptions(PPO, rejection=(RejectionRule("k2", upper=0.05),)), coupled=False)
    correction = load("verl_correction")
    distance = b.proximal - b.behaviour
    left = correction.compute_rollout_rejection_mask(distance, b.float_mask, "token_k2", 0.05)[0]
    module, given = load("verl"), config(**CLIP)
    weights = distance.exp()
    theirs = module.compute_policy_loss_vanilla(
        b.proximal, b.theta, b.advantages, left, config=given, rollout_is_weights=weights
    )
    return ours, theirs[0]


def _policy_of(kind: Any, **fields: Any) -> PolicyOptions:
    return PolicyOptions(Surrogate(kind, 0.2, 0.28, **fields))


ADAPTERS: dict[str, Any] = {
    "verl compute_policy_loss": lambda b: (
        b.policy(PolicyOptions(PPO)),
        load("verl").compute_policy_loss(
            b.proximal, b.theta, b.advantages, b.float_mask, cliprange_low=0.2, cliprange_high=0.28
        )[0],
    ),
    "verl compute_policy_loss_vanilla": lambda b: (b.policy(PolicyOptions(PPO)), _policy("vanilla", b)),
    "verl compute_policy_loss_gspo": lambda b: (
        b.policy(PolicyOptions(Surrogate(clip_low=0.2, clip_high=0.28), "sequence"), aggregation="sequence"),
        _policy("gspo", b),
    ),
    "verl compute_policy_loss_sapo": lambda b: (
        b.policy(_policy_of("sapo"), aggregation="sequence"), _policy("sapo", b, tau_pos=1.0, tau_neg=1.05)
    ),
    "verl compute_policy_loss_cispo": lambda b: (b.policy(_policy_of("cispo")), _policy("cispo", b)),
    "verl compute_policy_loss_gpg": lambda b: slopes(b.policy(_policy_of("none"), on_policy=True), _policy("gpg", b)),
    "verl compute_policy_loss_reinforce": lambda b: slopes(
        b.policy(_policy_of("none"), on_policy=True),
        load("verl").compute_policy_loss_reinforce(
            b.behaviour, b.theta, b.advantages, b.float_mask, "token-mean", config(**CLIP)
        )[0],
    ),
    "verl compute_policy_loss_dppo_tv": lambda b: slopes(
        b.policy(PolicyOptions(DPPOOptions("tv", 0.2, 0.28))), _policy("dppo_tv", b)
    ),
    "verl compute_policy_loss_dppo_kl": lambda b: slopes(
        b.policy(PolicyOptions(DPPOOptions("binaryKl", 0.2, 0.28))), _policy("dppo_kl", b)
    ),
    "verl compute_value_loss": lambda b: (
        critic(b), load("verl").compute_value_loss(b.new_values, b.returns, b.values, b.float_mask, 0.2)[0]
    ),
    "verl compute_gae_advantage_return": _gae,
    "verl compute_grpo_outcome_advantage": lambda b: _outcome("grpo", b, b.outcomes(unbiased=True)),
    "verl compute_grpo_outcome_advantage, groups of one": _groups_of_one,
    "verl compute_policy_loss_vanilla after a rejection": _after_rejection,
    "verl kl_penalty k3 of unlikely tokens": lambda b: (
        kl_loss(b.theta - 9, b.reference, "k3"), load("verl").kl_penalty(b.theta - 9, b.reference, "k3")
    ),
    "verl compute_grpo_outcome_advantage without σ": lambda b: _outcome(
        "grpo", b, b.outcomes(std="none"), norm_adv_by_std_in_grpo=False
    ),
    "verl compute_rloo_outcome_advantage": lambda b: _outcome("rloo", b, b.outcomes(std="none", leave_one_out=True)),
    "verl compute_rloo_vectorized_outcome_advantage": lambda b: _outcome(
        "rloo_vectorized", b, b.outcomes(std="none", leave_one_out=True)
    ),
    "verl compute_reinforce_plus_plus_baseline_outcome_advantage": lambda b: _outcome(
        "reinforce_plus_plus_baseline", b, b.whitened(b.outcomes(std="none"))
    ),
    "verl compute_reinforce_plus_plus_outcome_advantage": _plus_plus,
    "verl compute_rewards": lambda b: (
        b.token_rewards - 0.1 * kl(b.proximal, b.reference, "k1"),
        load("verl").compute_rewards(b.token_rewards, b.proximal, b.reference, 0.1),
    ),
    "verl kl_penalty k1": lambda b: _kl(b, "k1", "k1"),
    "verl kl_penalty k2": lambda b: _kl(b, "k2", "k2"),
    "verl kl_penalty k3": lambda b: _kl(b, "k3", "k3"),
    "verl kl_penalty k3+": lambda b: slopes(
        kl_loss(b.theta, b.reference, "k2"), load("verl").kl_penalty(b.theta, b.reference, "k3+")
    ),
    "verl kl_penalty_forward": lambda b: _kl(b, "k3", "low_var_kl", "kl_penalty_forward"),
    "verl agg_loss token-mean": lambda b: _summed(b, "token-mean", "token"),
    "verl agg_loss seq-mean-token-mean": lambda b: _summed(b, "seq-mean-token-mean", "sequence"),
    "verl agg_loss seq-mean-token-sum-norm": lambda b: _summed(b, "seq-mean-token-sum-norm", "constant", horizon=7),
    "verl compute_entropy_loss": lambda b: (
        b.summed(entropies(b)[b.mask]), load("verl").compute_entropy_loss(b.logits, b.float_mask)
    ),
    "verl masked_mean": lambda b: (b.summed(b.theta[b.mask]), load("verl_math").masked_mean(b.theta, b.float_mask)),
    "verl masked_whiten": _whitened,
    "verl logprobs_from_logits_v2": lambda b: (
        logprobs(b), load("verl_math").logprobs_from_logits_v2(b.logits, b.labels)
    ),
    "verl entropy_from_logits": lambda b: (entropies(b), load("verl_math").entropy_from_logits(b.logits)),
    "verl compute_rollout_rejection_mask token_k1": lambda b: _rejected(
        b, "token_k1", "0.7_1.4", metric="ratio", lower=1 / 1.4, upper=1 / 0.7
    ),
    "verl compute_rollout_rejection_mask token_k2": lambda b: _rejected(b, "token_k2", 0.05, metric="k2", upper=0.05),
    "verl compute_rollout_rejection_mask token_k3": lambda b: _rejected(b, "token_k3", 0.05, metric="k3", upper=0.05),
    "verl compute_rollout_rejection_mask seq_mean_k3": lambda b: _rejected(
        b, "seq_mean_k3", 0.08, metric="k3", upper=0.08, level="sequence"
    ),
    "verl compute_rollout_rejection_mask seq_sum_k1": lambda b: _rejected(
        b, "seq_sum_k1", "0.6_1.6", metric="ratio", lower=1 / 1.6, upper=1 / 0.6, level="sequence", aggregate="sum"
    ),
    "verl compute_rollout_rejection_mask seq_max_k2": lambda b: _rejected(
        b, "seq_max_k2", 0.2, metric="k2", upper=0.2, level="sequence", aggregate="max"
    ),
    "verl compute_rollout_correction_weights token": lambda b: _weights(b, "token", "token"),
    "verl compute_rollout_correction_weights sequence": lambda b: _weights(b, "sequence", "sequenceProduct"),
}  # fmt: skip
