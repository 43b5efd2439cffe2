"""The same rules in CEL give the same verdicts, over the whole corpus."""

from __future__ import annotations

from typing import Any

import pytest
from areal.spec import RULES, RLJob, check, load_job
from areal.spec.problems import SpecError
from areal.spec.quantity import parse_bytes
from spec_corpus import Case, cases

celpy = pytest.importorskip("celpy")
celtypes = celpy.celtypes

FRACTIONS = {  # numbers that the API server's schema types as `number`
    "learningRate", "minLrRatio", "weightDecay", "eps", "gradClip", "clipLow", "clipHigh", "klCoefficient", "upper",
    "temperature", "topP", "rewardBias", "groupDeadlineSeconds", "deadlineSeconds", "betas", "beta", "labelSmoothing",
    "nllWeight",
}  # fmt: skip


def as_cel(value: Any, name: str = "") -> Any:
    """A job as the API server shows it to rules: defaults in, nulls out."""
    if isinstance(value, bool):
        return celtypes.BoolType(value)
    if isinstance(value, dict):
        fields = {key: inner for key, inner in value.items() if inner is not None}
        return celtypes.MapType({celtypes.StringType(key): as_cel(inner, key) for key, inner in fields.items()})
    if isinstance(value, list):
        return celtypes.ListType([as_cel(inner, name) for inner in value])
    if isinstance(value, str):
        return celtypes.StringType(value)
    return celtypes.DoubleType(value) if name in FRACTIONS else celtypes.IntType(value)


@pytest.fixture(scope="module")
def programs():
    functions = {  # extensions of Kubernetes' CEL
        "quantity": lambda text: text,
        "asApproximateFloat": lambda text: celtypes.DoubleType(parse_bytes(str(text))),
        "split": lambda text, at: celtypes.ListType(map(celtypes.StringType, str(text).split(str(at)))),
    }
    environment = celpy.Environment()
    return {
        rule.id: environment.program(environment.compile(rule.cel), functions=functions) for rule in RULES if rule.cel
    }


def job_of(case: Case) -> RLJob | None:
    try:
        return load_job(case.path)
    except SpecError:
        return None


@pytest.mark.parametrize("case", [*cases("accepted"), *cases("refused")], ids=lambda case: case.path.stem)
def test_python_and_cel_agree(case, programs):
    job = job_of(case)
    if job is None:
        return  # refused by the schema before any rule is asked
    values = job.model_dump(mode="json")
    if "evaluation" not in job.spec.model_fields_set:
        values["spec"].pop("evaluation")  # the server defaults inside blocks that are there
    shown = {"self": as_cel(values)}
    by_cel = {rule for rule, program in programs.items() if not program.evaluate(shown)}
    assert by_cel == {finding.rule for finding in check(job)} & programs.keys()
