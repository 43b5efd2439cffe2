"""Packing: nothing lost, nothing seen that should not be."""

from __future__ import annotations

import numpy as np
import pytest
from areal.errors import DataError
from areal_trainer.data.batch import columns
from areal_trainer.data.micro_batches import balanced, mini_batches, pack, rank_micro_batches, row_length, trimmed
from hypothesis import given
from hypothesis import strategies as st
from support.trainer_parts import VOCABULARY, batch, sample

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80)


@given(LENGTHS, st.integers(60, 200))
def test_every_sequence_is_in_one_row_and_rows_hold_no_more_than_they_can(lengths, capacity):
    rows = pack(lengths, capacity)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= capacity for row in rows)
    assert len(rows) <= 2 * -(-sum(lengths) // capacity)  # best fit never needs twice the bins


@given(LENGTHS, st.integers(1, 5))
def test_parts_are_complete_and_balanced_to_one_sequence(lengths, parts):
    split = balanced(lengths, parts)
    assert sorted(index for part in split for index in part) == list(range(len(lengths)))
    loads = [sum(lengths[index] for index in part) for part in split]
    assert max(loads) - min(loads) <= max(lengths)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 6), st.integers(0, 99))
def test_mini_batches_cut_between_groups_and_lose_none(groups, count, step):
    group_ids = np.array(groups)
    parts = mini_batches(group_ids, count, (1, step))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(groups)))
    homes = [set(group_ids[part].tolist()) for part in parts]
    assert sum(len(home) for home in homes) == len(set(groups))
    again = mini_batches(group_ids, count, (1, step))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(16, 300),
    st.sampled_from([None, 8, 32, 100]),
    st.integers(0, 50),
    st.booleans(),
)
def test_micro_batches_of_all_ranks_predict_every_trained_token_once(groups, world, budget, length, seed, shared):
    tokens = batch(groups, 3, seed=seed, shared=shared)
    wanted = tokens.trainable()
    everything = np.arange(tokens.sequences)
    ranks = [
        rank_micro_batches(
            tokens, everything, wanted, rank=r, world_size=world, micro_batch_tokens=budget, pack_length=length
        )
        for r in range(world)
    ]
    assert len({len(micros) for micros in ranks}) == 1
    places = np.concatenate([micro.token_index.numpy() for micros in ranks for micro in micros])
    assert sorted(places.tolist()) == np.flatnonzero(wanted).tolist()
    for micro in (micro for micros in ranks for micro in micros):
        np.testing.assert_array_equal(micro.targets.numpy(), tokens.token_ids[micro.token_index.numpy()])
        before = micro.input_ids.flatten()[micro.select].numpy()
        np.testing.assert_array_equal(before, tokens.token_ids[micro.token_index.numpy() - 1])
        assert micro.input_ids.numel() <= max(budget, micro.input_ids.shape[1])


def rows_of(tokens, length):
    return rank_micro_batches(
        tokens,
        np.arange(tokens.sequences),
        tokens.trainable(),
        rank=0,
        world_size=1,
        micro_batch_tokens=9999,
        pack_length=length,
    )[0]


@pytest.mark.parametrize("shared", [False, True])
def test_a_token_sees_its_prefix_and_its_branch_and_nothing_later(shared):
    micro = rows_of(batch(4, 3, shared=shared), 64)
    mask = micro.attention_mask()[:, 0]
    rows, length = micro.bundle_ids.shape
    for row in range(rows):
        bundle, branch = micro.bundle_ids[row].tolist(), micro.branch_ids[row].tolist()
        for i in range(length):
            for j in range(length):
                allowed = bundle[i] == bundle[j] and j <= i and branch[j] in (0, branch[i])
                assert bool(mask[row, i, j]) == allowed


def test_positions_are_those_of_each_sequence_alone():
    micro = rows_of(batch(4, 4, shared=True), 64)
    for row in range(micro.input_ids.shape[0]):
        bundle, branch = micro.bundle_ids[row], micro.branch_ids[row]
        for number in set(bundle.tolist()) - {-1}:
            prefix = micro.position_ids[row][(bundle == number) & (branch == 0)].tolist()
            assert prefix == list(range(len(prefix)))
            for own in set(branch[bundle == number].tolist()) - {0}:
                rest = micro.position_ids[row][(bundle == number) & (branch == own)].tolist()
                assert rest == list(range(len(prefix), len(prefix) + len(rest)))


def test_a_groups_prompt_is_an_input_once():
    tokens = batch(6, 8, shared=True)
    micro = rows_of(tokens, 128)
    inputs = int((micro.bundle_ids >= 0).sum())
    assert inputs < 0.75 * int((tokens.lengths - 1).sum())


def test_a_group_too_long_for_a_row_is_split():
    tokens = batch(1, 8, shared=True)
    micro = rows_of(tokens, 16)
    assert micro.input_ids.shape[0] > 1
    assert sorted(micro.token_index.tolist()) == np.flatnonzero(tokens.trainable()).tolist()


def test_a_first_token_is_never_trained():
    one = sample(0, 0)
    one.sequences[0].loss_mask = b"\1" * len(one.sequences[0].loss_mask)
    tokens = columns([one], VOCABULARY)
    assert not tokens.trainable()[0]
    assert tokens.trainable()[1:].all()


def test_versions_come_from_the_spans():
    one = sample(5, 1, version=3)
    tokens = columns([one], VOCABULARY)
    assert set(tokens.versions[tokens.loss_mask].tolist()) == {3}
    assert set(tokens.versions[~tokens.loss_mask].tolist()) == {-1}


def test_arrays_of_unequal_length_are_the_datas_fault():
    one = sample(0, 0)
    one.sequences[0].logprobs = one.sequences[0].logprobs[:-4]
    with pytest.raises(DataError, match="log-probabilities"):
        columns([one], VOCABULARY)


def test_ids_outside_the_vocabulary_are_refused_by_name():
    with pytest.raises(DataError, match="the model has 3"):
        columns([sample(0, 0)], 3)


def test_rows_are_never_shorter_than_the_longest_sequence():
    assert row_length(1000, 256) == 1000
    assert row_length(10, 256) == 256
    assert row_length(10, None) == 128


@given(st.integers(0, 1 << 14), st.sampled_from([128, 4096, 1 << 14]))
def test_a_row_alone_is_not_padded_to_its_budget(filled, length):
    filled = min(filled, length)
    made = trimmed(filled, length)
    assert filled <= made <= length
    assert made - max(filled, 1) < (256 if length >= 4096 else 8)
