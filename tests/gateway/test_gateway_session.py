"""T1, T8, T9, T14: append-only ids, forks, retries and the budget of one session."""

from __future__ import annotations

import numpy as np
import pytest
from areal.gateway.faults import CallRefusal
from areal.gateway.messages import Message
from areal.gateway.session import EpisodeCalls, SessionCall, SessionLimits, SessionRequest
from areal.gateway.templates.template import Template
from areal.values.generation import GenerationResult, TokenSpan, as_ids
from areal.workflow.branches import branches_of
from hypothesis import given, settings
from hypothesis import strategies as st

LIMITS = SessionLimits(max_new_tokens=8, max_sample_tokens=4096, max_calls=64)


@pytest.fixture(scope="module")
def template(tokenizer):
    return Template(tokenizer)


def question(*texts: str, seed: int | None = None, **roles: str) -> SessionRequest:
    """User and assistant in turn."""
    messages = tuple(Message(("user", "assistant")[number % 2], text) for number, text in enumerate(texts))
    return SessionRequest(messages, digest=hash((texts, seed)), seed=seed)


def answer(session: EpisodeCalls, call: SessionCall, ids: list[int], text: str) -> None:
    span = TokenSpan(0, len(ids), "2.f1", "server")
    session.answered(
        call, GenerationResult(as_ids(ids), np.full(len(ids), -0.5, "<f4"), (span,)), Message("assistant", text)
    )


def test_t1_a_later_prompt_begins_with_what_was_given_and_sampled(template, tokenizer):
    session = EpisodeCalls("s", template, LIMITS)
    first, _ = session.ask(question("q"), retry=False)
    odd = [tokenizer.encode("t")[0], tokenizer.encode("h")[0], next(iter(tokenizer.eos_ids))]  # "th" in two tokens
    answer(session, first, odd, "th")
    second, _ = session.ask(question("q", "th", "more"), retry=False)
    assert second.parent == first.number
    known = [*first.prompt_ids.tolist(), *odd]
    assert second.prompt_ids.tolist()[: len(known)] == known
    assert known[-3:] != tokenizer.encode("th<|im_end|>").tolist(), "encoding the text again gives other ids"


WORDS = st.sampled_from(["a", "the", "12", "q", " x\n"])
IDS = st.lists(st.integers(0, 200), min_size=1, max_size=4)
ACTS = st.lists(
    st.tuples(st.sampled_from(["go on", "ask again", "retry", "rewrite", "drop the last turn", "space"]), WORDS, IDS),
    max_size=8,
)


@settings(max_examples=60)
@given(ACTS)
def test_t1_t8_t9_hold_for_whatever_a_client_does_to_its_history(template, acts):
    """Every prompt begins with the exact ids of the node it continues; each sampled token is trained at most once."""
    session, history, asked = EpisodeCalls("s", template, LIMITS), ["q"], 0
    sampled: dict[int, list[int]] = {}
    call = None
    for act, word, ids in [("go on", "a", [7]), *acts]:
        texts = {
            "rewrite": [*history[:-1], word] if len(history) == 1 else [history[0], word + "!", *history[2:]],
            "drop the last turn": history[:-2] if len(history) > 2 else history,
            "space": [f" {text}\n" for text in history],
        }.get(act, history)
        asked += act == "ask again"
        wanted = question(*texts, seed=asked)
        before = session.calls
        call, begin = session.ask(wanted, retry=act == "retry")
        assert begin == (session.calls == before + 1)
        if begin:
            answer(session, call, ids, f"{word}{call.number}")
            sampled[call.number] = ids
        session.delivered(call)
        if call.parent is not None:
            ours = session.graph.ids(call.parent).tolist()
            assert call.prompt_ids.tolist()[: len(ours)] == ours
        assert call.answer is not None
        history = [*texts, call.answer.text, word]
    branches = branches_of(session.close("the end"), 1.0)
    trained = [
        tuple(sequence.input_ids[: np.flatnonzero(sequence.loss_mask)[-1] + 1].tolist())
        for sequence in branches.episode.sequences
        if sequence.loss_mask.any()
    ]
    assert len(set(trained)) == len(trained)
    tokens = sum(int(sequence.loss_mask.sum()) for sequence in branches.episode.sequences)
    assert tokens <= sum(map(len, sampled.values()))
    if not branches.orphans:
        assert tokens == sum(map(len, sampled.values())), "every sampled token is trained once"


def test_t8_a_rewritten_history_is_a_branch_of_its_own_with_nothing_trained_but_its_answer(template):
    session = EpisodeCalls("s", template, LIMITS)
    first, _ = session.ask(question("q"), retry=False)
    answer(session, first, [5, 6], "yes")
    fork, _ = session.ask(question("q", "no", "more"), retry=False)
    assert fork.parent is None
    answer(session, fork, [9], "done")
    one, two = branches_of(session.close("over"), 1.0).episode.sequences
    assert (int(one.loss_mask.sum()), int(two.loss_mask.sum())) == (2, 1)
    assert np.flatnonzero(two.loss_mask).tolist() == [len(two.input_ids) - 1]


def test_t9_a_retry_joins_the_call_under_way(template):
    session = EpisodeCalls("s", template, LIMITS)
    call, begin = session.ask(question("q"), retry=False)
    again, second = session.ask(question("q"), retry=True)
    assert (begin, second, again is call, session.calls) == (True, False, True, 1)


def test_t9_a_call_whose_client_left_is_joined_without_a_count(template):
    session = EpisodeCalls("s", template, LIMITS)
    call, _ = session.ask(question("q"), retry=False)
    session.gone(call)
    again, begin = session.ask(question("q"), retry=False)
    assert (again is call, begin) == (True, False)


@pytest.mark.parametrize(("delivered", "retry"), [(False, False), (False, True), (True, True)])
def test_t9_an_answer_that_did_not_arrive_or_is_retried_is_given_again(template, delivered, retry):
    session = EpisodeCalls("s", template, LIMITS)
    call, _ = session.ask(question("q"), retry=False)
    answer(session, call, [5], "yes")
    (session.delivered if delivered else session.gone)(call)
    again, begin = session.ask(question("q"), retry=retry)
    assert (again is call, begin, session.calls) == (True, False, 1)


@pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "still under way"])
def test_t9_asking_the_same_again_on_purpose_is_a_new_question(template, delivered):
    session = EpisodeCalls("s", template, LIMITS)
    call, _ = session.ask(question("q"), retry=False)
    if delivered:
        answer(session, call, [5], "yes")
        session.delivered(call)
    other, begin = session.ask(question("q"), retry=False)
    assert begin
    assert other.draw != call.draw, "with a seed of its own"
    assert other.asked == call.asked


def test_t9_another_seed_is_another_question(template):
    session = EpisodeCalls("s", template, LIMITS)
    first, _ = session.ask(question("q", seed=1), retry=True)
    second, begin = session.ask(question("q", seed=2), retry=True)
    assert begin
    assert first.draw != second.draw


def test_t9_a_failed_call_is_sampled_again_with_the_same_seed(template):
    session = EpisodeCalls("s", template, LIMITS)
    call, _ = session.ask(question("q"), retry=False)
    draw = call.draw
    session.failed(call, CallRefusal("the engine is away", status=503))
    session.gone(call)
    again, begin = session.ask(question("q"), retry=True)
    assert (again is call, begin, again.draw) == (True, True, draw)


def test_t14_an_answer_has_the_room_there_is_and_then_is_refused(template):
    prompt = len(template.first([Message("user", "q")]))
    session = EpisodeCalls("s", template, SessionLimits(8, prompt + 3, 64))
    call, _ = session.ask(question("q"), retry=False)
    assert call.max_new_tokens == 3
    with pytest.raises(CallRefusal, match="maxSampleTokens") as caught:
        session.ask(question("q", seed=1), retry=False)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    answer(session, call, [5, 5, 5], "yes")
    with pytest.raises(CallRefusal):
        session.ask(question("q", "yes", "more"), retry=False)


def test_t14_an_episode_makes_so_many_calls(template):
    session = EpisodeCalls("s", template, SessionLimits(8, 4096, 1))
    session.ask(question("q"), retry=False)
    with pytest.raises(CallRefusal, match="maxCalls"):
        session.ask(question("other"), retry=False)


def test_an_ended_session_says_why(template):
    session = EpisodeCalls("s", template, LIMITS)
    session.close("its group was revoked")
    with pytest.raises(CallRefusal, match="revoked") as caught:
        session.ask(question("q"), retry=False)
    assert (caught.value.status, caught.value.headers) == (410, {"x-should-retry": "false"})
