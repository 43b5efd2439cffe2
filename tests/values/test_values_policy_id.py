"""Names of policies: text, order, directories."""

from __future__ import annotations

import pytest
from areal.errors import DataError
from areal.values.policy import NOTHING, PolicyId
from hypothesis import given
from hypothesis import strategies as st

policies = st.builds(PolicyId, st.integers(0, 10**9), st.integers(0, 10**6))


@given(policies)
def test_text_and_directory_come_back_as_the_same_policy(policy):
    assert PolicyId.parse(str(policy)) == policy
    assert PolicyId.from_directory(policy.directory) == policy


@given(policies, policies)
def test_a_higher_fence_supersedes_whatever_the_version(a, b):
    if a.fence > b.fence or (a.fence == b.fence and a.version > b.version):
        assert a > b
        assert b < a
        assert b <= a
        assert a >= b
    elif a == b:
        assert a <= b
        assert a >= b
        assert not a < b
    else:
        assert a < b


def test_design_examples():
    assert str(PolicyId(43, 7)) == "43.f7"
    assert PolicyId(42, 7).directory == "v00000042.f7"
    assert PolicyId(3, 2) > PolicyId(40, 1)
    assert PolicyId(0, 0) > NOTHING
    assert PolicyId.parse(str(NOTHING)) == NOTHING


@pytest.mark.parametrize(
    "text", ["", "43", "43.f", "f7", "043.f7", "43.f07", "43.f-1", "-2.f1", "43.f7 ", "43.F7", "４3.f7"]
)
def test_other_text_is_refused(text):
    with pytest.raises(DataError, match="policy id"):
        PolicyId.parse(text)


@pytest.mark.parametrize("name", [".tmp-v00000001.f1-ab", "v1.f1", "v00000001", "manifest.json", "v00000001.f1.bak"])
def test_other_directories_are_none_of_ours(name):
    assert PolicyId.from_directory(name) is None
