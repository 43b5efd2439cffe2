"""From a session's calls to an episode: every answer that counts is trained once."""

from __future__ import annotations

import numpy as np
import pytest
from areal.errors import DataError
from areal.values.generation import GenerationResult, TokenSpan, as_ids
from areal.workflow.branches import Node, branches_of


def node(number: int, parent: int | None, given: list[int], sampled: list[int], question: int | None = None) -> Node:
    span = TokenSpan(0, len(sampled), "1.f1", "server")
    logprobs = np.array([-token / 10 for token in sampled], "<f4")
    result = GenerationResult(as_ids(sampled), logprobs, (span,))
    return Node(number, parent, as_ids(given), result, number if question is None else question)


def test_a_conversation_is_one_sequence_whose_answers_are_trained():
    branches = branches_of([node(0, None, [1, 2], [3]), node(1, 0, [4], [5, 6])], 0.5)
    (sequence,) = branches.episode.sequences
    assert sequence.input_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert sequence.loss_mask.tolist() == [0, 0, 1, 0, 1, 1]
    assert sequence.logprobs.tolist() == pytest.approx([0, 0, -0.3, 0, -0.5, -0.6])
    assert [(span.start, span.end) for span in sequence.spans] == [(2, 3), (4, 6)]
    assert (sequence.reward, branches.orphans) == (0.5, 0)


def test_an_answer_shared_by_two_branches_is_trained_in_one():
    nodes = [node(0, None, [1], [2, 3]), node(1, 0, [4], [5]), node(2, 0, [6], [7])]
    first, second = branches_of(nodes, 1.0).episode.sequences
    assert first.loss_mask.tolist() == [0, 1, 1, 0, 1]
    assert second.input_ids.tolist() == [1, 2, 3, 6, 7]
    assert second.loss_mask.tolist() == [0, 0, 0, 0, 1]
    assert second.versions.tolist() == [-1, 1, 1, -1, 1], "context stays what a policy sampled"


def test_of_the_answers_to_one_question_the_continued_one_is_trained():
    nodes = [node(0, None, [1], [2], 0), node(1, None, [1], [3], 0), node(2, 0, [4], [5])]
    branches = branches_of(nodes, 1.0)
    assert [sequence.input_ids.tolist() for sequence in branches.episode.sequences] == [[1, 2, 4, 5]]
    assert branches.orphans == 1


def test_of_answers_that_nobody_continued_the_newest_is_trained():
    nodes = [node(0, None, [1], [2], 0), node(1, None, [1], [3], 0)]
    branches = branches_of(nodes, 1.0)
    assert [sequence.input_ids.tolist() for sequence in branches.episode.sequences] == [[1, 3]]
    assert branches.orphans == 1


def test_an_agent_that_asked_nothing_is_told_so():
    with pytest.raises(DataError, match="without a call"):
        branches_of([], 1.0)
