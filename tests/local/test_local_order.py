"""The order of starting and stopping."""

from __future__ import annotations

import pytest
from areal.errors import BugError
from areal.local.supervisor import resolve, stop_levels

ROLES = {
    "redis": "redis",
    "controller-0": "controller",
    "worker-0": "worker",
    "worker-1": "worker",
    "trainer": "trainer",
}
WANTS = {
    "redis": [],
    "controller-0": ["redis"],
    "worker-0": ["controller"],
    "worker-1": ["controller-0"],
    "trainer": ["controller", "worker"],
}


def test_a_role_names_all_its_rows():
    needs = resolve(ROLES, WANTS)
    assert needs["trainer"] == {"controller-0", "worker-0", "worker-1"}
    assert needs["worker-1"] == {"controller-0"}


def test_dependents_stop_before_what_they_depend_on():
    assert stop_levels(resolve(ROLES, WANTS)) == [["trainer"], ["worker-0", "worker-1"], ["controller-0"], ["redis"]]


def test_what_nobody_depends_on_stops_first():
    assert stop_levels({"redis": frozenset(), "reward": frozenset(), "trainer": frozenset({"redis"})}) == [
        ["reward", "trainer"],
        ["redis"],
    ]


def test_an_unknown_dependency_is_our_bug():
    with pytest.raises(BugError, match="depends on 'ledger'"):
        resolve(ROLES, {**WANTS, "trainer": ["ledger"]})


def test_a_circle_is_our_bug():
    with pytest.raises(BugError, match="circle"):
        stop_levels({"a": frozenset({"b"}), "b": frozenset({"a"})})
