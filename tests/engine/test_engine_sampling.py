"""Sampling depends on seed and position only, and follows the distribution."""

from __future__ import annotations

import numpy as np
import torch
from areal.engine.sampling import Choice, choose, uniforms
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

SEEDS = st.integers(0, 2**64 - 1)


def choice(seeds, positions, temperature=1.0, top_k=-1, top_p=1.0, min_p=0.0) -> Choice:
    rows = len(seeds)
    return Choice(
        np.asarray(seeds, np.uint64),
        np.asarray(positions, np.int64),
        np.full(rows, temperature, np.float32),
        np.full(rows, top_k, np.int64),
        np.full(rows, top_p, np.float32),
        np.full(rows, min_p, np.float32),
    )


@given(st.lists(st.tuples(SEEDS, st.integers(0, 2**31)), min_size=1, max_size=20))
def test_numbers_are_in_range_and_a_function_of_their_key_alone(keys):
    seeds, positions = zip(*keys, strict=True)
    together = uniforms(np.asarray(seeds, np.uint64), np.asarray(positions, np.int64))
    assert ((together >= 0) & (together < 1)).all()
    alone = [uniforms(np.asarray([seed], np.uint64), np.asarray([position]))[0] for seed, position in keys]
    assert together.tolist() == alone


def test_numbers_of_neighbouring_keys_are_uniform_and_uncorrelated():
    seeds = np.repeat(np.arange(200, dtype=np.uint64), 200)
    positions = np.tile(np.arange(200), 200)
    drawn = uniforms(seeds, positions).reshape(200, 200)
    counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
    assert abs(counts - 2000).max() < 6 * np.sqrt(2000)  # six standard deviations
    for shifted in (drawn[1:, :] * drawn[:-1, :], drawn[:, 1:] * drawn[:, :-1]):
        assert abs(shifted.mean() - 0.25) < 6 * 0.22 / np.sqrt(shifted.size)
    assert len(np.unique(drawn)) == drawn.size


@given(st.integers(0, 1000), st.integers(1, 12))
@settings(max_examples=examples(40), deadline=None)
def test_a_row_is_sampled_alike_in_every_batch(seed, others):
    logits = torch.randn(others + 1, 50, generator=torch.Generator().manual_seed(seed))
    keys = [seed, *range(10_000, 10_000 + others)]
    together, logprobs = choose(logits, choice(keys, range(others + 1)))
    alone, alone_logprobs = choose(logits[:1], choice(keys[:1], [0]))
    assert together[0] == alone[0]
    assert abs(logprobs[0] - alone_logprobs[0]) < 1e-6


def test_samples_follow_the_temperature_scaled_softmax():
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, -3.0]).repeat(40_000, 1)
    tokens, logprobs = choose(logits, choice(range(40_000), [7] * 40_000, temperature=0.7))
    expected = (logits[0].double() / 0.7).softmax(-1)
    shares = np.bincount(tokens, minlength=5) / len(tokens)
    assert np.abs(shares - expected.numpy()).max() < 6 * 0.5 / np.sqrt(40_000)
    assert np.allclose(logprobs, expected.log().numpy()[tokens], atol=1e-5)


def test_temperature_zero_takes_the_largest_and_reports_it_at_temperature_one():
    logits = torch.randn(8, 30, generator=torch.Generator().manual_seed(1))
    tokens, logprobs = choose(logits, choice(range(8), range(8), temperature=0.0))
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert np.allclose(logprobs, logits.log_softmax(-1).max(-1).values.numpy(), atol=1e-6)


@given(st.integers(1, 6), st.floats(0.05, 1.0), st.floats(0.0, 0.9), st.integers(0, 500))
@settings(max_examples=examples(60), deadline=None)
def test_truncation_never_leaves_its_set_and_keeps_the_full_logprob(top_k, top_p, min_p, seed):
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(seed)) * 2
    tokens, logprobs = choose(logits.repeat(50, 1), choice(range(50), [3] * 50, 1.0, top_k, top_p, min_p))
    probabilities = logits[0].double().softmax(-1)
    ordered = probabilities.sort(descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    kept = (
        (torch.arange(12) < top_k) & (before <= top_p + 1e-6) & (ordered.values >= (min_p - 1e-6) * ordered.values[0])
    )
    assert set(tokens.tolist()) <= set(ordered.indices[kept].tolist())
    assert np.allclose(logprobs, probabilities.log().numpy()[tokens], atol=1e-5)


def test_an_impossible_token_is_never_drawn():
    logits = torch.tensor([-torch.inf, 1.0, -torch.inf, 1.0, -torch.inf]).repeat(5_000, 1)
    tokens, _ = choose(logits, choice(range(5_000), range(5_000)))
    assert set(tokens.tolist()) == {1, 3}


def test_a_large_vocabulary_is_sampled_as_by_one_long_sum_in_float64():
    rows, vocab = 16, 151_936
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(3)) * 3
    given = choice(range(rows), range(rows))
    tokens, _ = choose(logits, given)
    cumulative = logits.double().softmax(-1).cumsum(-1)
    drawn = torch.from_numpy(uniforms(given.seeds, given.positions))
    for row, token in enumerate(tokens):
        slack = 1e-6  # of the total: float32 probabilities against float64
        below = cumulative[row, token - 1] if token else 0.0
        assert below - slack <= drawn[row] <= cumulative[row, token] + slack


@given(st.sampled_from([-1, 40, 3000]), st.sampled_from([1.0, 0.95, 0.5]), st.sampled_from([0.0, 0.01]), SEEDS)
@settings(max_examples=examples(20), deadline=None)
def test_candidates_decide_as_a_full_sort_would(top_k, top_p, min_p, seed):
    vocab, flat = 4096, 0.5 if seed % 2 else 3.0  # of a flat distribution top-p keeps more than the candidates
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed % 2**32)) * flat
    tokens, _ = choose(logits, choice([seed] * 4, range(4), top_k=top_k, top_p=top_p, min_p=min_p))
    ordered, order = logits.double().softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    rank = (order == torch.from_numpy(tokens)[:, None]).int().argmax(-1)
    chosen = torch.arange(4)
    assert (rank < (top_k if top_k > 0 else vocab)).all()
    assert (before[chosen, rank] <= top_p + 1e-6).all()
    assert (ordered[chosen, rank] >= min_p * ordered[:, 0] * (1 - 1e-6)).all()
