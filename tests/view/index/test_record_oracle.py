"""The audit of tokens finds every planted difference between what was sampled and what was trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from areal_view.index.oracle import FaultOf, JournalRequest, TrainedSequence, UntrainedReason, compare

PROMPT = [5, 6, 7]
FIRST, BETWEEN, SECOND = [10, 11, 12, 1], [8, 9], [13, 14, 1]


def ints(*parts):
    return np.array([value for part in parts for value in part], np.int32)


def sampled(fed, ids, *, name="r", attempt=1, version=3, whole=True) -> JournalRequest:
    logprobs = np.array([-0.1 * (place + 1) - len(fed) for place in range(len(ids))], np.float32)
    return JournalRequest(
        name, attempt, ints(fed), ints(ids), logprobs, np.full(len(ids), version, np.int32), 1.0, whole
    )


def trained(*answers: JournalRequest, tail=()) -> TrainedSequence:
    """The sequence that ends with the last of these answers, each of which continues what was before it."""
    last = answers[-1]
    count = len(last.fed) + len(last.ids)
    logprobs, versions = np.zeros(count, np.float32), np.full(count, -1, np.int32)
    for one in answers:
        place = slice(len(one.fed), len(one.fed) + len(one.ids))
        logprobs[place], versions[place] = one.logprobs, one.versions
    return TrainedSequence(ints(last.fed, last.ids, tail), logprobs, versions, versions >= 0, 1.0)


ONE = sampled(PROMPT, FIRST, name="one")
TWO = sampled([*PROMPT, *FIRST, *BETWEEN], SECOND, name="two", version=4)
BOTH = trained(ONE, TWO)
TOKENS = len(FIRST) + len(SECOND)


def audit(*sequences, made=(ONE, TWO), gaps=False):
    return compare("sample (0, 0)", sequences, made, gaps=gaps)


def changed(name, place, by):
    values = getattr(BOTH, name).copy()
    values[place] += by
    return replace(BOTH, **{name: values})


def without(place):
    return TrainedSequence(
        *(np.delete(getattr(BOTH, name), place) for name in ("ids", "logprobs", "versions", "trained")), 1.0
    )


def test_two_turns_as_they_were_sampled_are_equal():
    report = audit(BOTH)
    assert (report.trained, report.equal, report.sampled) == (TOKENS, TOKENS, TOKENS)
    assert report.ok
    assert not +report.untrained


@pytest.mark.parametrize(
    ("mutant", "what"),
    [
        (changed("ids", 4, 1), FaultOf.ID),
        (changed("ids", 1, 1), FaultOf.UNSAMPLED),  # of the prompt: what was fed was another one
        (changed("ids", 8, 1), FaultOf.UNSAMPLED),  # between the turns
        (changed("logprobs", 10, np.float32(1e-6)), FaultOf.LOGPROB),
        (changed("versions", 9, -1), FaultOf.VERSION),
        (without(5), FaultOf.DROPPED),
        (without(len(BOTH.ids) - 1), FaultOf.DROPPED),
        (replace(BOTH, temperature=0.7), FaultOf.TEMPERATURE),
        (replace(BOTH, trained=np.ones(len(BOTH.ids), np.bool_)), FaultOf.UNSAMPLED),  # the prompt is trained, too
    ],
)
def test_one_difference_is_found(mutant, what):
    report = audit(mutant)
    assert what in report.faults
    assert not report.ok
    assert report.examples


def test_a_token_trained_twice_is_found():
    shared = trained(ONE)
    report = audit(BOTH, shared)
    assert report.faults == {FaultOf.TWICE: len(FIRST)}
    assert report.equal == TOKENS


def test_branches_share_an_answer_that_one_of_them_trains():
    other = sampled([*PROMPT, *FIRST, 4], [15, 1], name="other")
    mask = trained(ONE, other).trained.copy()
    mask[: len(PROMPT) + len(FIRST)] = False
    report = audit(BOTH, replace(trained(ONE, other), trained=mask), made=(ONE, TWO, other))
    assert report.ok
    assert report.equal == report.sampled == TOKENS + 2


def test_what_is_sampled_and_not_trained_has_a_reason():
    aside = sampled(PROMPT, [20, 1], name="aside")
    earlier = sampled(PROMPT, [21, 22], name="earlier", attempt=0, whole=False)
    masked = replace(BOTH, trained=BOTH.trained & (np.arange(len(BOTH.ids)) > 7))
    report = audit(masked, made=(ONE, TWO, aside, earlier))
    assert report.ok
    assert dict(+report.untrained) == {
        UntrainedReason.MASKED: len(FIRST), UntrainedReason.NOT_TAKEN: 2, UntrainedReason.OTHER_ATTEMPT: 2,
    }  # fmt: skip
    assert report.sampled == report.equal + sum(report.untrained.values())


def test_an_answer_joined_from_two_servers_is_one():
    begun = sampled(PROMPT, FIRST[:2], name="begun", whole=False)
    ended = sampled([*PROMPT, *FIRST[:2]], FIRST[2:], name="ended", version=5)
    report = audit(trained(begun, ended), made=(ended, begun))
    assert report.ok
    assert report.equal == len(FIRST)


def test_an_answer_cut_at_a_deadline_may_have_had_more():
    cut = replace(ONE, whole=False)
    shorter = TrainedSequence(
        *(getattr(trained(ONE), name)[:-2] for name in ("ids", "logprobs", "versions", "trained")), 1.0
    )
    report = audit(shorter, made=(cut,))
    assert report.ok
    assert report.untrained[UntrainedReason.CUT] == 2


def test_equal_answers_of_two_questions_are_two():
    """A tiny model gives the same answer twice: each is one token's witness."""
    again = replace(ONE, request="again")
    assert audit(trained(ONE), trained(ONE), made=(ONE, again)).ok


@pytest.mark.parametrize("gaps", [False, True])
def test_a_request_nobody_journaled_proves_nothing_only_where_a_journal_has_a_gap(gaps):
    report = audit(BOTH, made=(ONE,), gaps=gaps)
    assert report.ok is gaps
    assert report.unwitnessed == (len(SECOND) if gaps else 0)
    assert report.equal == len(FIRST)
