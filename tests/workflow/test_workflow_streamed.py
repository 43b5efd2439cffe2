"""Token truth: an episode that is not what was streamed to it is refused, by its first differing token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from areal.errors import DataError
from areal.workflow import Episode, GenerationResult, Sampling, Sequence, TokenSpan, Transcript
from areal.workflow.streamed import StreamedAnswer, check_streamed, other_sampling
from hypothesis import given
from hypothesis import strategies as st

JOB = Sampling(max_new_tokens=8)
ROUTE = 2  # bytes


@st.composite
def episodes(draw):
    """One sequence of several turns, and the answers that it was made of."""
    transcript = Transcript(draw(st.lists(st.integers(0, 30), min_size=1, max_size=4)))
    answers = []
    for turn in range(draw(st.integers(1, 3))):
        ids = draw(st.lists(st.integers(0, 30), min_size=1, max_size=5))
        cuts = sorted(draw(st.sets(st.integers(1, len(ids)), max_size=2)) | {len(ids)})
        starts = [0, *cuts[:-1]]
        spans = tuple(TokenSpan(a, b, f"{turn + k}.f1", "s") for k, (a, b) in enumerate(zip(starts, cuts, strict=True)))
        logprobs = np.array(
            draw(st.lists(st.floats(-9, -0.125, width=32), min_size=len(ids), max_size=len(ids))), "<f4"
        )
        rows = bytes([turn]) * ROUTE * (len(transcript) + len(ids) - 1)
        result = GenerationResult(np.array(ids, "<i4"), logprobs, spans, routes=rows)
        answers.append(StreamedAnswer(turn, transcript.ids, result))
        transcript.sampled(result).given(draw(st.lists(st.integers(0, 30), max_size=3)))
    return transcript.sequence(1.0), answers


def changed(values, index, by):
    values = values.copy()
    values[index] += by
    return values


@given(episodes())
def test_what_was_streamed_is_accepted(made):
    sequence, answers = made
    check_streamed(Episode([sequence]), answers)
    check_streamed(Episode([sequence.masked(), sequence]), [*answers, *answers])
    with pytest.raises(DataError):
        check_streamed(Episode([sequence]), [])


@given(episodes())
def test_a_sequence_s_routes_are_of_the_turn_that_made_the_next_token(made):
    sequence, answers = made
    (routed,) = check_streamed(Episode([sequence]), answers).sequences
    expected = np.full(len(sequence.input_ids), 0xFF, "u1")
    for turn, answer in reversed(list(enumerate(answers))):
        expected[: len(answer.input_ids) + len(answer.result.output_ids) - 1] = turn
    assert np.frombuffer(routed.routes, "u1").reshape(-1, ROUTE).tolist() == [[at] * ROUTE for at in expected]
    bare = [replace(answers[0], result=replace(answers[0].result, routes=b"")), *answers[1:]]
    assert check_streamed(Episode([sequence]), bare).sequences[0].routes == b""
    episode = Episode([sequence])
    none = [replace(each, result=replace(each.result, routes=b"")) for each in answers]
    assert check_streamed(episode, none) is episode, "whatever class its user made"


@given(episodes(), st.data())
def test_any_change_of_one_id_one_logprob_or_one_boundary_is_refused(made, data):
    sequence, answers = made
    sampled = np.flatnonzero(sequence.versions >= 0).tolist()
    end = max(span.end for span in sequence.spans)
    what = data.draw(st.sampled_from(["id", "logprob", "boundary", "policy", "lost span"]))
    if what == "id":  # a given token before the last answer is its context: it counts as well
        index = data.draw(st.integers(0, end - 1))
        false = replace(sequence, input_ids=changed(sequence.input_ids, index, 1))
    elif what == "logprob":
        index = data.draw(st.sampled_from(sampled))
        false = replace(sequence, logprobs=changed(sequence.logprobs, index, -0.25))
    else:
        index = data.draw(st.integers(0, len(sequence.spans) - 1))
        span = sequence.spans[index]
        if what == "boundary":
            moved = TokenSpan(
                span.start, span.end + data.draw(st.sampled_from([-1, 1])), span.policy_id, span.server_id
            )
        else:
            moved = replace(span, policy_id="99.f1")
        rest = (*sequence.spans[:index], *sequence.spans[index + 1 :])
        false = replace(sequence, spans=rest if what == "lost span" else (*rest, moved))
        if what == "lost span" and any(len(answer.result.spans) == 1 for answer in answers):
            return  # an answer whose every span is left out is text of the workflow's own, and not trained
    with pytest.raises(DataError):
        check_streamed(Episode([false]), answers)


def answer(turn, prompt, ids, sampling=JOB):
    result = GenerationResult(
        np.array(ids, "<i4"), np.full(len(ids), -0.5, "<f4"), (TokenSpan(0, len(ids), "3.f1", "s"),)
    )
    return StreamedAnswer(turn, np.array(prompt, "<i4"), result, other_sampling(sampling, JOB))


def test_the_sentence_names_the_turn_and_the_first_differing_token():
    first, second = answer(0, [5, 6], [7, 8]), answer(1, [5, 6, 7, 8, 9], [10, 11])
    sequence = Transcript([5, 6]).sampled(first.result).given([9]).sampled(second.result).sequence(1.0)
    false = replace(sequence, input_ids=changed(sequence.input_ids, 6, 1))
    with pytest.raises(DataError, match=r"token 6 \(turn 1\) is 12, the engine sampled 11"):
        check_streamed(Episode([false]), [first, second])


def test_of_several_answers_to_one_prompt_the_sequence_may_be_any():
    tries = [answer(turn, [5, 6], [7, 8 + turn]) for turn in range(3)]
    for chosen in tries:
        check_streamed(Episode([Sequence.of([5, 6], chosen.result, 1.0)]), tries)
    with pytest.raises(DataError):
        check_streamed(Episode([Sequence.of([5, 6], answer(3, [5, 6], [7, 20]).result, 1.0)]), tries)


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 0.7), ("top_p", 0.9), ("top_k", 5), ("min_new_tokens", 2)]
)
def test_tokens_of_another_distribution_than_the_jobs_are_not_trained(field, value):
    other = answer(0, [5, 6], [7, 8], replace(JOB, **{field: value}))
    sequence = Sequence.of([5, 6], other.result, 1.0)
    with pytest.raises(DataError, match=f"turn 0, which was sampled with .*{value}"):
        check_streamed(Episode([sequence]), [other])
    check_streamed(Episode([sequence.masked()]), [other])


@pytest.mark.parametrize("field", ["max_new_tokens", "stop", "stop_token_ids", "ignore_eos"])
def test_where_an_answer_ends_is_the_workflows_choice(field):
    value = {"max_new_tokens": 3, "stop": ("x",), "stop_token_ids": (4,), "ignore_eos": True}[field]
    assert other_sampling(replace(JOB, **{field: value}), JOB) == ""
