"""The exact verifier."""

from __future__ import annotations

import pytest
from areal.reward.verifiers.exact import ExactVerifier, matches
from areal.v1 import common_pb2 as common


@pytest.mark.parametrize(
    ("completion", "answer", "same"),
    [
        (" 1234\n", "1234", True), ("12 34", "1234", False), ("a  b\tc", "a b c", True), ("A", "a", False),
        ("42", 42, True), ("42", 42.0, True), ("42.0", 42.0, True), ("42.5", 42.5, True), ("42", 42.5, False),
        ("b", ["a", "b"], True), ("c", ["a", "b"], False), ("", "x", False),
        ("e\u0301", "\u00e9", True),
    ],
)  # fmt: skip
def test_white_space_is_all_that_may_differ(completion: str, answer: object, same: bool) -> None:
    assert matches(completion, answer) is same


async def test_scores_and_faults_come_in_order(item) -> None:
    verifier = ExactVerifier("solution")
    right, wrong, missing, odd = await verifier.score(
        [item("1", solution="1"), item("2", solution="1"), item("1", answer="1"), item("1", solution={"a": 1})]
    )
    assert (right.WhichOneof("outcome"), right.score, wrong.score) == ("score", 1.0, 0.0)
    assert missing.fault.kind == common.FAULT_KIND_DATA
    assert 'no "solution"' in missing.fault.message
    assert odd.fault.kind == common.FAULT_KIND_DATA


async def test_a_row_that_is_no_json_is_a_fault_of_the_data(item) -> None:
    broken = item("1")
    broken.row_json = b"{"
    (result,) = await ExactVerifier("answer").score([broken])
    assert result.fault.kind == common.FAULT_KIND_DATA
