"""Which runtime a job gets that names none."""

from __future__ import annotations

from typing import Any

from areal_operator.submit.temporary_pod import DEFAULT, chosen_among


def runtime(name: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {}}


def test_the_only_runtime_is_taken():
    assert chosen_among([runtime("cpu")]) == runtime("cpu")


def test_of_several_the_marked_one_is_taken():
    marked = runtime("gpu", **{DEFAULT: "true"})
    assert chosen_among([runtime("cpu"), marked]) == marked


def test_several_without_a_mark_or_with_two_leave_the_choice_to_the_author():
    assert chosen_among([runtime("cpu"), runtime("gpu")]) is None
    assert chosen_among([runtime("cpu", **{DEFAULT: "true"}), runtime("gpu", **{DEFAULT: "true"})]) is None


def test_a_runtime_without_annotations_is_unmarked():
    bare = {"metadata": {"name": "cpu"}, "spec": {}}
    assert chosen_among([bare, runtime("gpu", **{DEFAULT: "false"})]) is None
