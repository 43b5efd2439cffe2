"""Episodes: what may be trained, and how several turns become one sequence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from areal.errors import DataError
from areal.values.generation import as_ids, in_vocabulary
from areal.workflow import Episode, GenerationResult, Sequence, TokenSpan, Transcript
from areal.workflow.episode import RejectedError, check_episode
from hypothesis import given
from hypothesis import strategies as st


def result(ids, policy="3.f1", finish="stop"):
    span = (TokenSpan(0, len(ids), policy, "s"),) if ids else ()
    return GenerationResult(np.array(ids, "<i4"), np.full(len(ids), -0.5, "<f4"), span, finish)


ids_lists = st.lists(st.integers(0, 30), min_size=1, max_size=6)


@pytest.mark.parametrize(("ids", "inside"), [([], True), ([0, 30], True), ([31], False), ([5, -1], False)])
def test_a_token_id_is_from_zero_to_the_size_of_the_vocabulary(ids, inside):
    assert in_vocabulary(as_ids(ids), 31) is inside


@given(prompt=ids_lists, turns=st.lists(st.tuples(ids_lists, ids_lists), min_size=1, max_size=4))
def test_a_transcript_is_exactly_what_was_given_and_sampled(prompt, turns):
    transcript = Transcript(prompt)
    ids, mask, versions = list(prompt), [0] * len(prompt), [-1] * len(prompt)
    for turn, (answer, feedback) in enumerate(turns):
        transcript.sampled(result(answer, f"{turn}.f1")).given(feedback)
        ids += [*answer, *feedback]
        mask += [1] * len(answer) + [0] * len(feedback)
        versions += [turn] * len(answer) + [-1] * len(feedback)
        assert transcript.ids.tolist() == ids
    sequence = transcript.sequence(1.0)
    assert sequence.input_ids.tolist() == ids
    assert sequence.loss_mask.tolist() == mask
    assert sequence.versions.tolist() == versions
    assert (sequence.logprobs != 0).tolist() == [bool(m) for m in mask]
    check_episode(Episode([sequence]), vocab_size=31)


def test_an_episodes_reward_is_the_mean_of_its_sequences():
    episode = Episode([Sequence.of([1], result([2]), 1.0), Sequence.of([1], result([2], finish="length"), 0.0)])
    assert episode.reward == 0.5
    assert episode.truncated


GOOD = Sequence.of([5, 6], result([7, 1]), 1.0)


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        (replace(GOOD, loss_mask=np.array([0, 1, 1, 1], "u1")), "no engine sampled"),
        (replace(GOOD, spans=()), "no engine sampled"),
        (replace(GOOD, spans=(TokenSpan(2, 4, "3.f1", "s"), TokenSpan(3, 4, "4.f1", "s"))), "two spans over token 3"),
        (replace(GOOD, spans=(TokenSpan(2, 5, "3.f1", "s"),)), "outside"),
        (replace(GOOD, input_ids=np.array([5, 6, 7, 99], "<i4")), "token id outside"),
        (replace(GOOD, logprobs=np.zeros(3, "<f4")), "4 ids, 3 log-probabilities"),
        (replace(GOOD, logprobs=np.array([0, 0, np.nan, 0], "<f4")), "not finite"),
        (replace(GOOD, reward=float("nan")), "reward nan"),
    ],
)
def test_an_untrue_sequence_is_refused(sequence, words):
    with pytest.raises(DataError, match=words):
        check_episode(Episode([sequence]), vocab_size=10)


@pytest.mark.parametrize(
    "sequence",
    [Sequence.of([5, 6], result([]), 1.0), replace(GOOD.masked(), spans=()), Transcript([5]).given([6]).sequence(0.0)],
)
def test_an_episode_without_a_sampled_token_is_rejected(sequence):
    with pytest.raises(RejectedError, match="no token"):
        check_episode(Episode([sequence]), vocab_size=10)
    check_episode(Episode([sequence, GOOD]), vocab_size=10)


@pytest.mark.parametrize("returned", [1.0, {}, Episode([])])
def test_what_is_no_episode_is_refused(returned):
    with pytest.raises(DataError):
        check_episode(returned, vocab_size=10)


def test_a_masked_sequence_trains_nothing_and_keeps_its_tokens():
    masked = GOOD.masked()
    assert masked.loss_mask.sum() == 0
    assert masked.input_ids is GOOD.input_ids
    check_episode(Episode([masked]), vocab_size=10)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"a/b": 1.0}, "named 'a/b'"),
        ({"": 1.0}, "named ''"),
        ({"x" * 65: 1.0}, "named"),
        ({7: 1.0}, "named 7"),
        ({"turns": math.inf}, "turns is inf"),
        ({"turns": "3"}, "turns is '3'"),
        ({f"n{number}": 1.0 for number in range(65)}, "65 figures"),
    ],
)
def test_a_figure_that_no_place_could_show_is_refused(figures, words):
    with pytest.raises(DataError, match=words):
        check_episode(Episode([GOOD], figures=figures), vocab_size=31)
    check_episode(Episode([GOOD], figures={"turns": 3, "tool-errors.web": np.float32(0.5)}), vocab_size=31)
