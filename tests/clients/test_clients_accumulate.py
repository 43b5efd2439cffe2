"""Joining streamed deltas: whatever the cuts, the answer is the uninterrupted one."""

from __future__ import annotations

import numpy as np
import pytest
from areal.clients.generation.accumulate import Accumulator, BadDelta, Next
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal.values.generation import Sampling, as_ids
from hypothesis import given
from hypothesis import strategies as st
from support.scripted_agent import EOS, VOCABULARY, answer, logprob_at, token_at

RESUBMITTED = [
    wire.END_REASON_ABORTED,
    wire.END_REASON_BELOW_FLOOR,
    wire.END_REASON_DRAINING,
    wire.END_REASON_ENGINE_LOST,
]


def accumulator(prompt=(5, 6, 7), limit=20, **fields):
    sampling = Sampling(max_new_tokens=limit, **fields)
    return Accumulator(as_ids(prompt), sampling, eos_ids=frozenset({EOS}), vocab_size=VOCABULARY)


def delta(ids, policy="1.f1", server="a", logprobs=None):
    ids = list(ids)
    return (
        np.asarray(ids, "<i4").tobytes(),
        np.asarray([-0.5] * len(ids) if logprobs is None else logprobs, "<f4").tobytes(),
        [common.Span(start=0, end=len(ids), policy_id=policy, server_id=server)] if ids else [],
    )


cuts = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([None, *RESUBMITTED]), st.integers(0, 2)), max_size=30)


@given(seed=st.integers(0, 10**6), limit=st.integers(1, 24), prompt=st.integers(1, 5), plan=cuts)
def test_any_cuts_give_the_uninterrupted_answer(seed, limit, prompt, plan):
    """Each entry of the plan: a delta of so many tokens, then maybe an end that asks to be resubmitted."""
    expected_ids, expected_logprobs, expected_reason = answer(seed, prompt, limit)
    made = accumulator(prompt=range(4, 4 + prompt), limit=limit)
    expected_policies = []
    steps = iter([*plan, *[(5, None, 0)] * 30])
    policy = 0
    while True:
        size, interruption, swap = next(steps)
        policy += swap
        position = len(made.input_bytes()) // 4
        ids = []
        while len(ids) < min(size, made.remaining):
            ids.append(token_at(seed, position + len(ids)))
            if ids[-1] == EOS:
                break
        logprobs = [logprob_at(seed, position + k) for k in range(len(ids))]
        assert made.add(*delta(ids, f"{policy}.f1", logprobs=logprobs)) == len(ids)
        expected_policies += [policy] * len(ids)
        if interruption is not None:
            following = made.end(interruption)
        elif ids and ids[-1] == EOS:
            following = made.end(wire.END_REASON_STOP)
        elif not made.remaining:
            following = made.end(wire.END_REASON_LENGTH)
        else:
            continue
        if following is Next.FINISHED:
            break
        assert following is Next.RESUBMIT
    result = made.result()
    assert result.output_ids.tolist() == expected_ids
    assert result.logprobs.tolist() == expected_logprobs
    assert result.finish_reason == expected_reason
    assert result.versions.tolist() == expected_policies
    assert len({(span.policy_id, span.server_id) for span in result.spans}) == len(result.spans)


ROUTE = 3  # bytes


def rows(policy, begin, end):
    """Of tokens [begin, end), as a policy routes them."""
    return b"".join(bytes([policy, at, 7]) for at in range(begin, end))


@given(plan=st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=8), prompt=st.integers(1, 4))
def test_a_token_s_routes_are_of_the_policy_that_made_the_next(plan, prompt):
    """Each entry: a delta of so many tokens, then maybe another attempt, which computes all before again."""
    made = accumulator(prompt=range(4, 4 + prompt), limit=40)
    expected, policy, told = b"", 0, 0
    for size, again in plan:
        ids, logprobs, spans = delta([5] * size, f"{policy}.f1")
        end = prompt + made.tokens + size - 1
        expected += rows(policy, len(expected) // ROUTE, end)
        assert made.add(ids, logprobs, spans, rows(policy, told, end), ROUTE) == size
        told = end
        if again:
            assert made.end(wire.END_REASON_ABORTED) is Next.RESUBMIT
            policy, told = policy + 1, 0
    assert made.result().routes == expected
    assert len(expected) == ROUTE * (prompt + made.tokens - 1)
    with pytest.raises(BadDelta, match="bytes of routes"):
        made.add(*delta([5, 6]), rows(policy, 0, 1), ROUTE)
    assert made.add(*delta([5])) == 1
    assert made.result().routes == b"", "of a token they are lacking"


@given(
    split=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    policies=st.lists(st.sampled_from(["1.f1", "2.f1"]), min_size=6, max_size=6),
)
def test_spans_inside_a_delta_are_joined_across_deltas(split, policies):
    made = accumulator(limit=100)
    expected = []
    for size, policy in zip(split, policies, strict=False):
        ids, logprobs, _ = delta([5] * (2 * size))
        spans = [
            common.Span(start=0, end=size, policy_id="1.f1", server_id="a"),
            common.Span(start=size, end=2 * size, policy_id=policy, server_id="a"),
        ]
        made.add(ids, logprobs, spans)
        expected += [1] * size + [int(policy[0])] * size
    result = made.result()
    assert result.versions.tolist() == expected
    assert all(a.policy_id != b.policy_id for a, b in zip(result.spans, result.spans[1:], strict=False))


IDS, LOGPROBS, SPANS = delta([5, 6])


@pytest.mark.parametrize(
    "bad",
    [
        (IDS[:7], LOGPROBS, SPANS),
        (IDS, LOGPROBS[:4], SPANS),
        (IDS, LOGPROBS, []),
        (IDS, LOGPROBS, [common.Span(start=0, end=1, policy_id="1.f1")]),
        (IDS, LOGPROBS, [common.Span(start=1, end=2, policy_id="1.f1")]),
        (IDS, LOGPROBS, [common.Span(start=0, end=3, policy_id="1.f1")]),
        (IDS, LOGPROBS, [common.Span(start=0, end=2)]),
        delta([5, VOCABULARY]),
        delta([-1, 5]),
        delta([5, 6], logprobs=[-0.5, float("nan")]),
        delta([5] * 21),
    ],
)
def test_a_delta_that_cant_be_true_is_refused_whole(bad):
    made = accumulator()
    with pytest.raises(BadDelta):
        made.add(*bad)
    assert made.tokens == 0
    assert made.result().spans == ()


def test_a_lost_end_after_the_end_token_is_no_resubmission():
    made = accumulator()
    made.add(*delta([5, EOS]))
    assert made.end(wire.END_REASON_ENGINE_LOST) is Next.FINISHED
    assert made.result().finish_reason == "stop"


def test_an_ignored_end_token_is_continued():
    made = accumulator(ignore_eos=True)
    made.add(*delta([5, EOS]))
    assert made.end(wire.END_REASON_ENGINE_LOST) is Next.RESUBMIT


def test_a_lost_end_after_the_last_token_of_the_budget_is_no_resubmission():
    made = accumulator(limit=2)
    made.add(*delta([5, 6]))
    assert made.end(wire.END_REASON_ABORTED) is Next.FINISHED
    assert made.result().finish_reason == "length"


def test_a_lost_end_after_a_stop_text_is_no_resubmission():
    made = Accumulator(
        as_ids([5]),
        Sampling(max_new_tokens=9, stop=("67",)),
        eos_ids=frozenset(),
        vocab_size=VOCABULARY,
        decode=lambda ids: "".join(map(str, ids)),
    )
    made.add(*delta([6]))
    assert made.end(wire.END_REASON_ENGINE_LOST) is Next.RESUBMIT
    made.add(*delta([7]))
    assert made.end(wire.END_REASON_ENGINE_LOST) is Next.FINISHED


def test_a_refusal_is_not_resubmitted():
    assert accumulator().end(wire.END_REASON_REFUSED) is Next.REFUSED
    assert accumulator().end(wire.END_REASON_UNSPECIFIED) is Next.REFUSED
