"""Versions of several trainer ranks sent by a process group: what arrives is what lies on the volume."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.forked_ranks import program

pytestmark = [pytest.mark.component, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of a server that takes everything, and of one that fails after the first bucket."""
    lines = [json.loads(line) for line in program("group_ranks", tmp_path_factory.mktemp("ranks"))]
    assert [line["codes"] for line in lines] == [[0, 0, 0]] * 2
    return lines


def test_a_full_version_and_a_delta_of_ranks_on_two_machines_arrive_as_on_the_volume(found) -> None:
    taken, _ = found
    assert taken["full"] == [True, False]
    assert taken["faults"] == []
    assert set(taken["arrived"]) == {"3.f1", "4.f1"}
    assert len(taken["expected"]["3.f1"]) == 9
    assert taken["arrived"] == taken["expected"]


def test_a_server_that_fails_in_the_middle_keeps_no_rank_waiting(found) -> None:
    failed = found[1]
    assert failed["faults"] == ["fault: bucket"]
    assert set(failed["expected"]) == {"3.f1", "4.f1"}, "both versions are on the volume"
    assert failed["arrived"]["3.f1"] != failed["expected"]["3.f1"]
