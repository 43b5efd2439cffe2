"""Collection keeps what somebody may still read."""

from __future__ import annotations

import numpy as np
from areal.values.policy import PolicyId
from areal.weights.publish import collect, publish, versions
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples


def put(root, *policies):
    for policy in policies:
        publish(root, policy, [("w", "F32", (1,), np.ones(1, np.float32))], None, {})


def test_latest_its_predecessor_and_leased_versions_stay(tmp_path):
    put(tmp_path, *(PolicyId(version, 1) for version in range(6)))
    removed = collect(tmp_path, keep={PolicyId(1, 1)}, latest=PolicyId(4, 1))
    assert removed == [PolicyId(0, 1), PolicyId(2, 1)]
    assert versions(tmp_path) == [PolicyId(1, 1), PolicyId(3, 1), PolicyId(4, 1), PolicyId(5, 1)]


def test_after_a_rollback_the_older_fence_goes_first(tmp_path):
    put(tmp_path, PolicyId(8, 1), PolicyId(9, 1), PolicyId(3, 2), PolicyId(4, 2))
    assert collect(tmp_path, keep=set(), latest=PolicyId(4, 2)) == [PolicyId(8, 1), PolicyId(9, 1)]


def test_what_dead_publishers_left_is_removed_and_a_living_one_is_left_alone(tmp_path):
    put(tmp_path, PolicyId(3, 2))
    names = [".tmp-v00000003.f2-aaa", ".tmp-v00000009.f1-bbb", ".trash-v00000001.f1", ".tmp-v00000004.f2-ccc"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-0").write_bytes(b"half")
    assert collect(tmp_path, keep=set(), latest=PolicyId(3, 2)) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-v00000004.f2-ccc", "v00000003.f2"]


def test_a_root_that_is_not_there_holds_nothing(tmp_path):
    assert versions(tmp_path / "weights") == []
    assert collect(tmp_path / "weights", keep=set(), latest=PolicyId(1, 1)) == []


policies = st.builds(PolicyId, st.integers(0, 6), st.integers(1, 3))


@settings(max_examples=examples(25), deadline=None)
@given(there=st.sets(policies, min_size=1), keep=st.sets(policies), data=st.data())
def test_nothing_needed_is_ever_removed(tmp_path_factory, there, keep, data):
    root = tmp_path_factory.mktemp("weights")
    for policy in there:
        (root / policy.directory).mkdir()
    latest = data.draw(st.sampled_from(sorted(there)))
    removed = set(collect(root, keep, latest))
    assert set(versions(root)) == there - removed
    assert not removed & keep
    assert all(policy < latest for policy in removed)
    unneeded = sorted(policy for policy in there if policy < latest)[:-1]
    assert removed == set(unneeded) - keep
