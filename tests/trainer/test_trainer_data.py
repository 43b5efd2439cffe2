"""Packing: nothing lost, nothing seen that should not be."""

from __future__ import annotations

import numpy as np
import pytest
from areal.errors import DataError
from areal_trainer.data.batch import columns
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.data.packing import balanced, mini_batches, pack, row_length
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
    st.integers(1, 12), st.integers(1, 3), st.integers(16, 300), st.sampled_from([None, 8, 32, 100]), st.integers(0, 50)
)
def test_micro_batches_of_all_ranks_predict_every_trained_token_once(groups, world, budget, length, seed):
    tokens = batch(groups, 3, seed=seed)
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


def test_attention_is_causal_within_a_sequence_and_blind_outside():
    tokens = batch(3, 3)
    micro = rank_micro_batches(
        tokens, np.arange(9), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64, pack_length=64
    )[0]
    mask = micro.attention_mask()[:, 0]
    rows, length = micro.segment_ids.shape
    for row in range(rows):
        for i in range(length):
            for j in range(length):
                same = micro.segment_ids[row, i] == micro.segment_ids[row, j]
                assert bool(mask[row, i, j]) == (bool(same) and j <= i)


def test_positions_start_again_with_each_sequence():
    tokens = batch(4, 2)
    micro = rank_micro_batches(
        tokens, np.arange(8), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=999, pack_length=32
    )[0]
    for row in range(micro.input_ids.shape[0]):
        for segment in set(micro.segment_ids[row].tolist()) - {-1}:
            positions = micro.position_ids[row][micro.segment_ids[row] == segment].tolist()
            assert positions == list(range(len(positions)))


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
    assert row_length(10, None) == 64
