"""Reward normalisation against hand calculations in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from areal_trainer.algorithms.baseline import BaselineOptions, normalised_rewards

EPS = 1e-6


def advantages(rewards, groups, counted=None, samples=None, raw=None, **options):
    counted = np.ones(len(rewards), bool) if counted is None else np.array(counted)
    samples = np.arange(len(rewards)) if samples is None else np.array(samples)
    raw = None if raw is None else np.array(raw, float)
    return normalised_rewards(
        np.array(rewards, float), np.array(groups), samples, counted, BaselineOptions(**options), raw=raw
    )


def test_grpo_normalises_each_group_by_its_own_mean_and_deviation():
    result = advantages([1, 0, 0, 0, 5, 7], [3, 3, 3, 3, 9, 9])
    mean, std = 0.25, math.sqrt(0.25 * 0.75)
    expected = [(1 - mean) / (std + EPS), *[-mean / (std + EPS)] * 3, -1 / (1 + EPS), 1 / (1 + EPS)]
    np.testing.assert_allclose(result.values, expected, rtol=1e-12)
    assert result.trained.all()


def test_a_group_that_lost_a_sample_shifts_no_other_group():
    whole = advantages([1, 0, 1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1])
    partial = advantages([1, 0, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(whole.values[4:], partial.values[3:])


def test_interleaved_groups_are_told_apart_by_id():
    result = advantages([1, 10, 0, 20], [7, 2, 7, 2], std="none")
    np.testing.assert_allclose(result.values, [0.5, -5, -0.5, 5])


def test_a_group_without_variance_is_masked_and_counted():
    result = advantages([1, 1, 0, 1], [0, 0, 1, 1])
    assert result.trained.tolist() == [False, False, True, True]
    assert result.zero_variance_groups == 1
    assert result.values[:2].tolist() == [0.0, 0.0]


def test_rounding_does_not_turn_equal_rewards_into_a_signal():
    result = advantages([0.1] * 3, [0] * 3, mask_zero_variance=False)
    assert result.values.tolist() == [0.0, 0.0, 0.0]


def test_leave_one_out_compares_with_the_others_only():
    result = advantages([3, 0, 6, 9], [0, 0, 0, 1], std="none", leave_one_out=True)
    np.testing.assert_allclose(result.values, [0.0, -4.5, 4.5, 0.0])
    assert result.trained.tolist() == [True, True, True, False]


def test_batch_levels_use_all_counted_sequences():
    rewards = np.array([0.0, 1.0, 2.0, 5.0])
    result = advantages(rewards, [0, 0, 1, 1], mean="batch", std="batch", mask_zero_variance=False)
    np.testing.assert_allclose(result.values, (rewards - 2.0) / (rewards.std() + EPS), rtol=1e-12)


def test_a_sequence_cut_at_the_deadline_enters_no_mean():
    result = advantages([1, 0, 100], [0, 0, 0], counted=[True, True, False], std="none")
    np.testing.assert_allclose(result.values, [0.5, -0.5, 0.0])
    assert not result.trained[2]


def test_an_episode_of_many_sequences_weighs_as_much_as_an_episode_of_one():
    """Sample 0 has three turns of reward 1, samples 1 and 2 one of 0: the mean is 1/3, not 3/5."""
    result = advantages([1, 1, 1, 0, 0], [0] * 5, samples=[0, 0, 0, 1, 2])
    std = math.sqrt((4 / 9 + 1 / 9 + 1 / 9) / 3)
    expected = [2 / 3 / (std + EPS)] * 3 + [-1 / 3 / (std + EPS)] * 2
    np.testing.assert_allclose(result.values, expected, rtol=1e-12)
    batch = advantages([1, 1, 1, 0, 0], [0, 0, 0, 0, 1], samples=[0, 0, 0, 1, 0], mean="batch", std="batch")
    np.testing.assert_allclose(batch.values[:3], 2 / 3 / (std + EPS), rtol=1e-12)


def test_leave_one_out_leaves_out_all_sequences_of_a_sample():
    result = advantages([4, 2, 6, 9], [0] * 4, samples=[0, 0, 1, 2], std="none", leave_one_out=True)
    np.testing.assert_allclose(result.values, [4 - 7.5, 2 - 7.5, 6 - 6.0, 9 - 4.5])


def test_without_a_group_mean_groups_that_earned_the_same_are_trained_unless_masked():
    kept = advantages([1, 1, 0, 0], [0, 0, 1, 1], mean="batch", std="none", mask_zero_variance=False)
    np.testing.assert_allclose(kept.values, [0.5, 0.5, -0.5, -0.5])
    assert kept.trained.all()
    masked = advantages([1, 1, 0, 0], [0, 0, 1, 1], mean="batch", std="none")
    assert not masked.trained.any()


@pytest.mark.parametrize("level", ["group", "batch"])
def test_bessels_correction_divides_by_one_less(level):
    rewards = [1.0, 0.0, 0.0, 2.0]
    biased = advantages(rewards, [0] * 4, std=level)
    unbiased = advantages(rewards, [0] * 4, std=level, unbiased=True)
    std = float(np.std(rewards))
    np.testing.assert_allclose(biased.values, (np.array(rewards) - 0.75) / (std + EPS), rtol=1e-12)
    np.testing.assert_allclose(unbiased.values, (np.array(rewards) - 0.75) / (std * math.sqrt(4 / 3) + EPS), rtol=1e-12)


def test_the_deviation_is_around_the_mean_that_is_subtracted():
    """LitePPO: the batch's deviation of what the groups' means leave; without a mean it is the root mean square."""
    rewards = np.array([0.0, 2.0, 10.0, 14.0])
    lite = advantages(rewards, [0, 0, 1, 1], std="batch")
    np.testing.assert_allclose(lite.values, np.array([-1, 1, -2, 2]) / (math.sqrt(2.5) + EPS), rtol=1e-12)
    plain = advantages(rewards, [0, 0, 1, 1], mean="none", std="group", mask_zero_variance=False)
    root = np.sqrt([2, 2, 148, 148])
    np.testing.assert_allclose(plain.values, rewards / (root + EPS), rtol=1e-12)
    batch = advantages(rewards, [0, 0, 1, 1], mean="batch", std="group", mask_zero_variance=False)
    root = np.sqrt([(42.25 + 20.25) / 2] * 2 + [(12.25 + 56.25) / 2] * 2)
    np.testing.assert_allclose(batch.values, (rewards - 6.5) / (root + EPS), rtol=1e-12)


@pytest.mark.parametrize("rewards", [[1, 1, 1, 1], [1, 1, 1, 1 - 1e-9], [0, 0, 0, 1e6], [1e6, 1e6, 1e6, 1e6 + 1e-9]])
@pytest.mark.parametrize("mean", ["group", "batch", "none"])
@pytest.mark.parametrize("std", ["group", "batch"])
def test_rewards_that_are_nearly_the_same_or_far_apart_make_no_advantage_beyond_the_root_of_n(rewards, mean, std):
    found = advantages(rewards, [0] * 4, mean=mean, std=std, mask_zero_variance=False)
    assert np.abs(found.values).max() <= (math.sqrt(3) if mean == "group" else 2.0)


def test_the_deviation_of_huge_rewards_does_not_overflow():
    found = advantages([1e200, 0, 0, 0], [0] * 4)
    np.testing.assert_allclose(found.values, [math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rtol=1e-12)


def test_equal_rewards_of_many_turns_have_no_advantage_to_the_last_bit():
    samples = [0, 0, 0, 1, 1, 2]
    for options in ({}, {"leave_one_out": True, "std": "none"}, {"mean": "batch", "std": "batch"}):
        found = advantages([0.1] * 6, [0] * 6, samples=samples, mask_zero_variance=False, **options)
        assert not found.values.any()


def test_leave_one_out_is_the_centred_reward_times_n_over_n_less_one():
    rewards = np.random.default_rng(0).normal(size=12)
    groups = np.repeat([0, 1, 2], 4)
    centred = advantages(rewards, groups, std="none").values
    out = advantages(rewards, groups, std="none", leave_one_out=True).values
    np.testing.assert_allclose(out, centred * 4 / 3, rtol=1e-12)


def test_a_group_is_flat_by_its_raw_rewards_however_they_were_shaped():
    shaped = advantages([1.0, 0.5, 1.0, 0.0], [0, 0, 1, 1], raw=[1, 1, 1, 0])
    assert shaped.trained.tolist() == [False, False, True, True]
    assert shaped.zero_variance_groups == 1
    kept = advantages([1.0, 0.5], [0, 0], raw=[1, 1], std="none", mask_zero_variance=False)
    np.testing.assert_allclose(kept.values, [0.25, -0.25])


def test_without_baseline_and_scale_the_reward_is_the_outcome():
    result = advantages([3.0, -1.0, 2.0], [0, 0, 1], mean="none", std="none", mask_zero_variance=False)
    assert result.values.tolist() == [3.0, -1.0, 2.0]
    assert result.trained.all()
