"""The explanation's numbers, and the page of fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.spec import RULES, check, explain, load_job
from areal.spec.block import blocks_in, fields_of
from areal.spec.job import RLJob
from areal.spec.load import job_from
from areal.spec.numbers import evaluated_versions
from areal.yaml_file.document import parse_document
from spec_corpus import CORPUS

from tools.pages.job_file import render

QUICKSTART = CORPUS / "accepted" / "quickstart.yaml"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "rljob.md"


def test_the_quickstart_in_numbers():
    lines = dict(explain(load_job(QUICKSTART)))
    assert lines["a step"] == "64 groups × 8 samples = 512 samples, at most 32,768 tokens (64 a sample)"
    assert "10,240 groups, 81,920 samples" in lines["the run"]
    assert "no token is trained more than 2 versions old; ahead 1 (by default)" in lines["staleness"]
    assert "128 groups" in lines["in flight"]
    assert "256 KiB a step; 3 steps = 768 KiB of 2 GiB" in lines["samples kept"]
    assert "clip is idle" in lines["updates"]
    assert "versions 0, 10, 20, …, 150, 160" in lines["evaluation"]


def test_the_synchronous_loop_is_called_by_its_name():
    assert "synchronous" in dict(explain(load_job(QUICKSTART, ["algorithm.maxStaleness=0"])))["staleness"]


def test_the_last_version_is_always_evaluated():
    versions = evaluated_versions(load_job(QUICKSTART, ["algorithm.maxSteps=25", "evaluation.atStart=false"]))
    assert versions == [10, 20, 25]
    assert evaluated_versions(load_job(QUICKSTART, ["dataset.evaluation=null"])) == []


def test_forced_checkpoints_are_announced():
    lines = dict(explain(load_job(CORPUS / "accepted" / "budget-forces-checkpoints.yaml")))
    assert "the budget forces one every 4 steps" in lines["checkpoints"]


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text() == render(), "run `make docs`"


def test_the_page_has_every_field_and_every_rule():
    page = PAGE.read_text()

    def names(block):
        for name, field in fields_of(block).items():
            yield name
            for inner in blocks_in(field.annotation):
                yield from names(inner)

    assert [
        name for name in names(RLJob) if name != "spec" and f"`{name}`" not in page and f"### {name}" not in page
    ] == []
    assert [rule.id for rule in RULES if f"`{rule.id}`" not in page] == []


def test_the_page_s_example_is_a_good_job():
    text = PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]
    assert check(job_from(parse_document(text, Path("example.yaml")))) == []


@pytest.mark.parametrize(("bound", "share"), [(1, "1/2"), (5, "1/6")])
def test_the_longest_answer_bounds_a_step_whatever_the_lead(bound: int, share: str) -> None:
    said = dict(explain(load_job(QUICKSTART, [f"algorithm.maxStaleness={bound}"])))["staleness"]
    assert f"a step takes {share} of the longest answer's time alone at least" in said
