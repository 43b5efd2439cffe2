"""One corpus of job files, accepted and refused: each is judged as its first lines say."""

from __future__ import annotations

import pytest
from areal.errors import ConfigError
from areal.spec import RULES, Severity, check, load_job, refuse
from areal.spec.problems import SpecError
from spec_corpus import Case, cases

ACCEPTED, REFUSED = cases("accepted"), cases("refused")


def ids(case: Case) -> str:
    return case.path.stem


@pytest.mark.parametrize("case", ACCEPTED, ids=ids)
def test_accepted(case):
    findings = check(load_job(case.path), case.facts)
    refuse(findings, case.path)
    assert sorted(finding.rule for finding in findings) == sorted(case.warnings)


@pytest.mark.parametrize("case", [case for case in REFUSED if case.fields], ids=ids)
def test_refused_by_a_field(case):
    with pytest.raises(SpecError) as caught:
        load_job(case.path)
    assert [problem.field for problem in caught.value.problems] == case.fields
    for problem in caught.value.problems:
        assert problem.where.startswith(str(case.path)), "an error says where"
        assert str(problem) in str(caught.value)
    assert "docs/rljob.md" in caught.value.fix


@pytest.mark.parametrize("case", [case for case in REFUSED if case.rules], ids=ids)
def test_refused_by_a_rule(case):
    findings = check(load_job(case.path), case.facts)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    assert [finding.rule for finding in errors] == case.rules
    with pytest.raises(ConfigError, match=f"\\[{case.rules[0]}\\]") as caught:
        refuse(findings, case.path)
    assert errors[0].where.startswith(str(case.path))
    assert errors[0].fix in caught.value.fix


def test_every_rule_is_broken_by_some_file():
    broken = {rule for case in REFUSED for rule in case.rules} | {rule for case in ACCEPTED for rule in case.warnings}
    assert broken == {rule.id for rule in RULES}


def test_the_corpus_is_as_large_as_promised():
    assert len(RULES) >= 20
    assert len(REFUSED) >= 25
    assert len(ACCEPTED) >= 8
