"""Functions of other projects beside ours: value and gradient of sixty random batches, and what differs by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peer_areal import ADAPTERS as AREAL
from peer_batch import PeerBatch
from peer_files import ROOT
from peer_others import ADAPTERS as OTHERS
from peer_verl import ADAPTERS as VERL

pytestmark = [
    pytest.mark.component,
    pytest.mark.nightly,
    pytest.mark.skipif(ROOT is None, reason="AREAL_PEERS names no folder with the other projects"),
]
BATCHES = 60
ADAPTERS: dict[str, Any] = {**VERL, **AREAL, **OTHERS}
WHITENING, STEPS = "ε of whitening", "tokens of a tool are steps"
DIFFERENCES = {  # name → why; each is in docs/deviations.md
    "verl compute_gae_advantage_return": WHITENING,
    "verl compute_reinforce_plus_plus_baseline_outcome_advantage": WHITENING,
    "verl compute_reinforce_plus_plus_outcome_advantage": WHITENING,
    "verl masked_whiten": WHITENING,
    "verl compute_grpo_outcome_advantage, groups of one": "a group of one has the advantage r",
    "verl compute_policy_loss_vanilla after a rejection": "counts are after rejection",
    "verl kl_penalty k3 of unlikely tokens": "the value is cut at 10, with its gradient",
    "AReaL ppo_actor_loss_fn sequence, advantages by token": "one advantage a sequence",
    "AReaL ppo_actor_loss_fn without rejection": "no behaviour weight without rejection",
    "AReaL apply_rejection_sampling k3": "sign of k3",
    "AReaL Normalization leave one out, group": "σ around the others' mean",
    "AReaL compute_prox_logp_approximations loglinear, the version before the update": "age one less",
    "AReaL reward_overlong_penalty beyond maxTokens": "no floor",
    "OpenRLHF PolicyLoss gspo, advantages by token": "the gradient of a token is of the whole sequence's advantages",
    "OpenRLHF get_advantages_and_returns": STEPS,
    "OpenRLHF get_cumulative_returns with a discount": STEPS,
    "SkyRL ppo_critic_loss": "a mean over sequences",
    "SkyRL masked_whiten": WHITENING,
    "SkyRL compute_maxrl_advantage": "1e-6 below",
    "SkyRL compute_reinforce_plus_plus_outcome_advantage": STEPS,
    "SkyRL compute_gae_advantage_return": STEPS,
    "TRL nanstd, the batch's scale": "σ around the batch's mean beside the group's μ",
    "TRL masked_whiten": WHITENING,
}


def compared(name: str, seed: int) -> bool:
    """Whether value and gradients of a batch agree."""
    b = PeerBatch(seed, holes="whole answers" not in name)
    ours, theirs = ADAPTERS[name](b)
    if not torch.allclose(ours.detach().double(), theirs.detach().double(), rtol=5e-6, atol=1e-6):
        return False
    leaves = [leaf for leaf in (b.theta, b.new_values, b.logits, b.scores) if leaf.grad_fn is None]
    if not theirs.requires_grad:
        return True
    cotangent = torch.linspace(0.5, 1.5, ours.numel(), dtype=torch.float64).reshape(ours.shape)
    found = [
        torch.autograd.grad((each.double() * cotangent).sum(), leaves, allow_unused=True, retain_graph=True)
        for each in (ours, theirs)
    ]
    return all(
        torch.allclose(*(torch.zeros(1) if grad is None else grad.double() for grad in pair), rtol=2e-5, atol=1e-6)
        for pair in zip(*found, strict=True)
        if any(grad is not None for grad in pair)
    )


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_function_is_equal_to_theirs_or_listed(name):
    agreed = [compared(name, seed) for seed in range(BATCHES)]
    assert all(agreed) == (name not in DIFFERENCES), f"{sum(agreed)} of {BATCHES} batches agree"
