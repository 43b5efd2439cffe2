"""A user's hooks are tried before a run; what they return is judged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from areal.dataflow.builtin import StepNeeds, policy_gradient
from areal.dataflow.stages import Column, Stage
from areal.errors import DataError
from areal_trainer.algorithms.advantages import AdvantageOptions, estimate_advantages
from areal_trainer.algorithms.statistics import LossStatistics
from areal_trainer.data.micro_batches import MicroBatch
from areal_trainer.hooks import HookFacts, advantages_from, try_hooks
from areal_trainer.objective import ObjectiveOptions, PolicyObjective
from support.trainer_parts import batch


def test_fitting_hooks_pass():
    def by_token(given):
        assert given.rewards.shape == given.truncated.shape == (4,)
        return np.where(given.loss_mask, 0.5, 0.0)

    try_hooks(by_token, lambda given, outputs: -outputs.logprobs * given.advantages, 24, HookFacts())
    try_hooks(lambda given: given.rewards - given.rewards.mean(), None, 3, HookFacts())
    try_hooks(None, None, 24, HookFacts())


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (lambda given: given.rewards[:2], r"shape \(2,\) for 4 sequences of 18 tokens"),
        (lambda given: given.reward, "AttributeError"),
        (lambda given: given.rewards.__setitem__(0, 1.0), "read-only"),
    ],
)
def test_advantages_that_would_fail_at_the_first_step_fail_before_it(hook, message):
    with pytest.raises(DataError, match=message):
        try_hooks(hook, None, 24, HookFacts())


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (lambda given, outputs: outputs.logprobs.sum(), r"returned \(\) for 10 tokens"),
        (lambda given, outputs: 1.0, "returned float"),
        (lambda given, outputs: given.behaviour, "without a gradient"),
        (lambda given: given.behaviour, "TypeError"),
    ],
)
def test_so_does_a_loss(hook, message):
    with pytest.raises(DataError, match=message):
        try_hooks(None, hook, 24, HookFacts())


def test_a_hook_is_tried_with_what_the_job_has_and_no_more():
    usual, second = policy_gradient(StepNeeds()), Column("second", "sequence", "float64")
    own = usual.before("advantages", Stage("own", "compute", writes=(second,), run=dict))
    own = own.reading("advantages", second).reading("update policy", second)

    def advantages(given):
        return given.rewards + given.columns["second"] + given.values.sum()

    def loss(given, outputs):
        return outputs.loss + outputs.logprobs - given.reference * given.columns["second"]

    try_hooks(advantages, loss, 24, HookFacts(critic=True, reference=True, own=own, usual=usual))
    for given, message in ((HookFacts(critic=True), "KeyError"), (HookFacts(own=own, usual=usual), "NoneType")):
        with pytest.raises(DataError, match=message):
            try_hooks(advantages, None, 24, given)
    with pytest.raises(DataError, match="NoneType"):
        try_hooks(None, loss, 24, HookFacts(own=own, usual=usual))


def test_advantages_by_token_reach_trained_tokens_only_and_leave_out_sequences_of_zeros():
    tokens = batch(2)
    usual = estimate_advantages(tokens, AdvantageOptions())
    given = np.arange(tokens.tokens, dtype=float)
    given[tokens.sequence_of == 3] = 0.0
    found = advantages_from(given, tokens, usual)
    np.testing.assert_array_equal(found.tokens, np.where(tokens.trainable(), given, 0.0))
    assert found.trained.tolist() == [True] * 3 + [False] + [True] * 4


def test_a_loss_of_ones_own_replaces_the_usual_and_is_aggregated_like_it():
    tokens = batch(2)
    advantages = estimate_advantages(tokens, AdvantageOptions())
    statistics = LossStatistics(torch.device("cpu"))
    objective = PolicyObjective(
        tokens,
        advantages,
        ObjectiveOptions(),
        step=0,
        device=torch.device("cpu"),
        compute_loss=lambda given, outputs: outputs.logprobs * 3.0,
    )
    trained = tokens.trainable()
    place = torch.from_numpy(np.flatnonzero(trained))
    logprobs = torch.zeros(len(place), requires_grad=True)
    nothing = torch.zeros(0)
    micro = MicroBatch(*[nothing] * 7, token_index=place)
    objective.of(trained, statistics)(logprobs, torch.zeros(len(place)), micro).backward()
    torch.testing.assert_close(logprobs.grad, torch.full((len(place),), 3.0 / len(place)))
