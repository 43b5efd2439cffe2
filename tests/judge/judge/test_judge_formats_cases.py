"""Formats of paired inputs and outputs: APPS, TACO, PRIME, LiveCodeBench, CodeContests, SandboxFusion, verifiable."""

from __future__ import annotations

import base64
import contextlib
import json
import zlib
from typing import Any

import pytest
from areal.errors import DataError
from areal_judge.judge.formats.registry import detect, suite_of
from areal_judge.judge.suites import from_json, to_json
from areal_judge.judge.values import AssertSuite, CallCase, CallSuite, Checker, StdioCase, StdioSuite, Suite
from areal_judge.sandbox.values import DEFAULT_LIMITS
from hypothesis import given
from hypothesis import strategies as st

Row = dict[str, Any]

STDIO = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
SUMS = (StdioCase("1 2\n", "3\n"), StdioCase("3 4\n", "7\n"))
CALLS = {"fn_name": "add", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}
ADDS = (CallCase((1, 2), 3), CallCase((3, 4), 7))


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


def lcb(*cases: tuple[str, str], kind: str = "stdin") -> list[Row]:
    return [{"input": given, "output": due, "testtype": kind} for given, due in cases]


PUBLIC, PRIVATE = lcb(("1 2\n", "3\n")), lcb(("3 4\n", "7\n"))

STDIO_ROWS: dict[str, tuple[str, Row]] = {
    "apps, an object": ("apps", {"input_output": STDIO}),
    "apps, text": ("apps", {"input_output": json.dumps(STDIO), "solutions": '["print(1)"]', "starter_code": ""}),
    "apps, lists of lines": ("apps", {"input_output": {"inputs": [["1 2"], ["3 4"]], "outputs": [["3"], ["7"]]}}),
    "apps, lists of words": ("apps", {"input_output": {"inputs": [[[1, 2]], [["3", 4]]], "outputs": [[3], 7]}}),
    "apps, no function": ("apps", {"input_output": STDIO | {"fn_name": None}}),
    "prime": ("apps", {"reward_model": {"style": "rule", "ground_truth": json.dumps(STDIO)}, "ability": "code"}),
    "taco": (
        "taco",
        {"input_output": json.dumps(STDIO), "skill_types": "[]", "time_limit": None, "memory_limit": None},
    ),
    "codecontests": (
        "codecontests",
        {
            "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["3 4\n"], "output": ["7\n"]},
            "time_limit": None,
            "memory_limit_bytes": 0,
            "input_file": "",
            "output_file": "",
        },
    ),
    "codecontests, lists of pairs": (
        "codecontests",
        {"public_tests": [{"input": "1 2\n", "output": "3\n"}], "private_tests": [{"input": "3 4\n", "output": "7\n"}]},
    ),
    "livecodebench": (
        "livecodebench",
        {"public_test_cases": json.dumps(PUBLIC), "private_test_cases": json.dumps(PRIVATE)},
    ),
    "livecodebench, packed": (
        "livecodebench",
        {"public_test_cases": json.dumps(PUBLIC), "private_test_cases": packed(PRIVATE)},
    ),
    "livecodebench, text packed": (
        "livecodebench",
        {"public_test_cases": PUBLIC, "private_test_cases": packed(json.dumps(PRIVATE))},
    ),
    "sandboxfusion": ("sandboxfusion", {"test_cases": STDIO}),
    "sandboxfusion, text": ("sandboxfusion", {"test_cases": json.dumps(STDIO)}),
    "sandboxfusion, online judge": (
        "sandboxfusion",
        {
            "id": 1,
            "content": "add",
            "test": [
                {"input": {"stdin": "1 2\n"}, "output": {"stdout": "3\n"}},
                {"input": {"stdin": "3 4\n"}, "output": {"stdout": "7\n"}},
            ],
        },
    ),
    "verifiable": (
        "verifiable",
        {
            "verification_info": {
                "language": "python",
                "test_cases": [
                    {"fn_name": None, "input": "1 2\n", "output": "3\n", "type": "stdin_stdout"},
                    {"fn_name": None, "input": "3 4\n", "output": "7\n", "type": "stdin_stdout"},
                ],
            }
        },
    ),
    "verifiable, text": (
        "verifiable",
        {
            "verification_info": json.dumps(
                {"test_cases": [{"input": "1 2\n", "output": "3\n"}, {"input": "3 4\n", "output": "7\n"}]}
            )
        },
    ),
    "verifiable, a list": (
        "verifiable",
        {"test_cases": [{"input": "1 2\n", "output": "3\n"}, {"input": "3 4\n", "output": "7\n"}]},
    ),
}


@pytest.mark.parametrize("name", STDIO_ROWS)
def test_standard_input_and_output(name: str) -> None:
    form, row = STDIO_ROWS[name]
    suite = suite_of(row)
    assert isinstance(suite, StdioSuite)
    assert [(case.stdin.split(), case.expected.split()) for case in suite.cases] == [
        (case.stdin.split(), case.expected.split()) for case in SUMS
    ]
    assert all(case.stdin.endswith("\n") for case in suite.cases)
    assert detect(row) == form
    assert suite_of(row, form) == suite
    assert from_json(to_json(suite)) == suite


def verifiable(name: str, *cases: tuple[Any, Any]) -> Row:
    return {
        "test_cases": [
            {"fn_name": name, "input": given, "output": due, "type": "function_call"} for given, due in cases
        ]
    }


CALL_ROWS: dict[str, tuple[str, Row]] = {
    "apps, JSON lines": ("apps", {"input_output": json.dumps(CALLS)}),
    "apps, a line at the end": ("apps", {"input_output": CALLS | {"inputs": ["1\n2\n", "3\n\n4"]}}),
    "apps, lists of arguments": (
        "apps",
        {"input_output": {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}},
    ),
    "taco": ("taco", {"input_output": CALLS, "skill_types": "[]"}),
    "sandboxfusion": ("sandboxfusion", {"test_cases": CALLS}),
    "verifiable": ("verifiable", verifiable("add", ([1, 2], 3), ([3, 4], 7))),
    "verifiable, JSON lines": ("verifiable", verifiable("add", ("1\n2", "3"), ("3\n4", "7"))),
    "livecodebench": (
        "livecodebench",
        {
            "public_test_cases": lcb(("1\n2", "3"), kind="functional"),
            "private_test_cases": packed(lcb(("3\n4", "7"), kind="functional")),
            "metadata": '{"func_name": "add"}',
            "starter_code": "def add(a, b):\n    ",
        },
    ),
}


@pytest.mark.parametrize("name", CALL_ROWS)
def test_functions(name: str) -> None:
    form, row = CALL_ROWS[name]
    suite = suite_of(row)
    assert isinstance(suite, CallSuite)
    assert suite.entry_point == "add"
    assert suite.cases == ADDS
    assert not suite.unwrap_single
    assert detect(row) == form
    assert from_json(to_json(suite)) == suite


def calls_of(row: Row, form: str = "auto") -> CallSuite:
    suite = suite_of(row, form)
    assert isinstance(suite, CallSuite)
    return suite


def test_expected_values_in_one_list_more_are_accepted_where_all_are() -> None:
    wrapped = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [[2]]]}
    assert calls_of({"input_output": wrapped}).unwrap_single
    assert not calls_of({"input_output": wrapped, "unwrap_single": False}).unwrap_single
    assert not calls_of({"input_output": wrapped | {"outputs": [[1], [1, 2]]}}).unwrap_single
    assert not calls_of({"input_output": wrapped | {"inputs": ["1", "2"], "outputs": ["[1]", "[2]"]}}).unwrap_single
    assert calls_of(verifiable("f", ([1], [1]), ([2], [2]))).unwrap_single


def test_integer_keys_that_became_strings_are_integers_again() -> None:
    tests = {"fn_name": "f", "inputs": [[{"1": "a", "-2": "b"}, {"x": 1}, {"1": 1, "y": 2}]], "outputs": [{"3": [4]}]}
    (case,) = calls_of({"input_output": tests}).cases
    assert case.arguments == ({1: "a", -2: "b"}, {"x": 1}, {"1": 1, "y": 2})
    assert case.expected == {3: [4]}


def test_a_value_may_take_several_lines() -> None:
    (case,) = calls_of({"input_output": {"fn_name": "f", "inputs": ["[\n  1,\n  2\n]"], "outputs": ["[2, 1]"]}}).cases
    assert case == CallCase(([1, 2],), [2, 1])


def test_text_given_beside_lists_of_arguments_is_the_value_itself() -> None:
    (case,) = calls_of({"input_output": {"fn_name": "f", "inputs": [["12"]], "outputs": ["12"]}}).cases
    assert case == CallCase(("12",), "12")


def test_a_prelude_of_usual_imports_comes_with_functions_and_parses() -> None:
    names: dict[str, Any] = {}
    exec(calls_of({"input_output": CALLS}).prelude, names)
    assert {"List", "defaultdict", "heappush", "math", "gcd", "lru_cache"} <= set(names)


@pytest.mark.parametrize(
    ("row", "cpu_s", "memory_bytes"),
    [
        (
            {"input_output": STDIO, "skill_types": "", "time_limit": "2.0 seconds", "memory_limit": "256.0 megabytes"},
            2,
            256 << 20,
        ),
        ({"input_output": STDIO, "skill_types": "", "time_limit": "500 ms", "memory_limit": "1 gb"}, 0.5, 1 << 30),
        (
            {
                "public_tests": {"input": ["1"], "output": ["1"]},
                "time_limit": {"seconds": 2, "nanos": 500_000_000},
                "memory_limit_bytes": 256_000_000,
            },
            2.5,
            256_000_000,
        ),
        (
            {"public_tests": {"input": ["1"], "output": ["1"]}, "time_limit": 1.5, "memory_limit_bytes": "1024"},
            1.5,
            64 << 20,
        ),
        (
            {"public_tests": {"input": ["1"], "output": ["1"]}, "time_limit": {"seconds": None, "nanos": None}},
            None,
            None,
        ),
        ({"public_test_cases": PUBLIC}, 6, None),
    ],
)
def test_limits_of_a_row(row: Row, cpu_s: float | None, memory_bytes: int | None) -> None:
    limits = suite_of(row).limits
    assert limits.cpu_s == (cpu_s or DEFAULT_LIMITS.cpu_s)
    assert limits.memory_bytes == (memory_bytes or DEFAULT_LIMITS.memory_bytes)
    assert limits.wall_s > limits.cpu_s


def test_each_set_compares_as_its_own_grader_does() -> None:
    def checker(row: Row) -> Checker:
        suite = suite_of(row)
        assert isinstance(suite, StdioSuite)
        return suite.checker

    assert checker({"input_output": STDIO}) == Checker("tokens")
    assert checker({"public_test_cases": PUBLIC}) == Checker("lcb_decimal")
    assert checker({"test_cases": STDIO}) == Checker("tokens_float", relative=1e-5, fold_case=True)


@pytest.mark.parametrize(
    "row",
    [
        {"test_cases": {"fn_name": "add", "assert_case": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]}},
        {"assert_case": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]},
        {"assert_case": '["assert add(1, 2) == 3", "assert add(0, 0) == 0"]'},
        {"assert_case": "assert add(1, 2) == 3\nassert add(0, 0) == 0"},
    ],
)
def test_asserts_of_sandboxfusion(row: Row) -> None:
    suite = suite_of(row)
    assert isinstance(suite, AssertSuite)
    assert suite.entry_point == "add"
    assert suite.test.split("\n")[:2] == ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_output": ""}, r"row\.input_output\.inputs: missing"),
        ({"input_output": "{"}, r"row\.input_output: no JSON"),
        ({"input_output": "[" * 99_999}, r"row\.input_output: JSON that is nested too deeply"),
        ({"input_output": "[]"}, r"row\.input_output"),
        ({"input_output": "[1]"}, r"row\.input_output: an object is due"),
        ({"input_output": {"inputs": ["1"]}}, r"row\.input_output\.outputs: missing"),
        ({"input_output": {"inputs": [], "outputs": []}}, r"row\.input_output: no cases"),
        ({"input_output": {"inputs": ["1", "2"], "outputs": ["1"]}}, r"2 inputs and 1 outputs"),
        ({"input_output": {"inputs": ["1"], "outputs": [None]}}, r"outputs\[0\]: a text"),
        ({"input_output": {"inputs": ["1"], "outputs": [[["a", None]]]}}, r"outputs\[0\]\[0\]: a line"),
        ({"input_output": {"inputs": ["1", "2"], "outputs": ["", " \n"]}}, "every expected output is blank"),
        ({"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [None]}}, "every expected value is null"),
        ({"input_output": {"fn_name": "f", "inputs": ["{1"], "outputs": ["1"]}}, r"inputs\[0\]: no JSON value"),
        ({"input_output": {"fn_name": "f", "inputs": ["1"], "outputs": ["yes"]}}, r"outputs\[0\]: no JSON value"),
        (
            {"input_output": {"fn_name": "f", "inputs": [{"a": 1}], "outputs": ["1"]}},
            r"inputs\[0\]: a list of arguments",
        ),
        ({"input_output": {"fn_name": "f g", "inputs": ["1"], "outputs": ["1"]}}, r"row\.entry_point"),
        ({"input_output": {"fn_name": 1, "inputs": ["1"], "outputs": ["1"]}}, r"input_output\.fn_name"),
        ({"input_output": STDIO, "skill_types": "", "time_limit": "soon"}, r"row\.time_limit: 'soon' is no time"),
        ({"input_output": STDIO, "skill_types": "", "memory_limit": "lots"}, r"row\.memory_limit"),
        ({"public_tests": {"input": ["1"], "output": []}}, r"row\.public_tests: 1 inputs and 0 outputs"),
        ({"public_tests": None, "private_tests": None}, "no cases"),
        ({"public_tests": [{"input": "1"}]}, r"row\.public_tests\[0\]"),
        ({"public_tests": {"input": ["1"], "output": ["1"]}, "input_file": "in.txt"}, r"row\.input_file"),
        ({"public_tests": {"input": ["1"], "output": ["1"]}, "time_limit": -1}, r"row\.time_limit: -1 is negative"),
        ({"public_test_cases": [{"input": "1"}]}, r"row\.public_test_cases\[0\]\.output: no expected output"),
        ({"public_test_cases": [{"input": "1", "output": "1", "testtype": "quiz"}]}, "'quiz' is unknown"),
        ({"public_test_cases": PUBLIC + lcb(("1", "1"), kind="functional")}, "some cases are functional"),
        ({"public_test_cases": lcb(("1", "1"), kind="functional")}, r"row\.metadata\.func_name: missing"),
        ({"test_cases": {"inputs": ["1"]}}, r"row\.test_cases\.outputs: missing"),
        ({"test": [{"input": {"stdin": "1"}, "output": {}}]}, r"row\.test\[0\]\.output\.stdout: no expected output"),
        ({"test_cases": [{"input": "1"}]}, r"row\.test_cases\[0\]\.output: no expected output"),
        ({"test_cases": [{"input": "1", "output": "1", "type": "quiz"}]}, "'quiz' is unknown"),
        ({"test_cases": [{"input": [1], "output": 1, "type": "function_call"}]}, r"fn_name: missing"),
        (verifiable("f", ([1], 1)) | {"verification_info": "{"}, "no JSON"),
        (
            {"test_cases": [*verifiable("f", ([1], 1))["test_cases"], *verifiable("g", ([1], 1))["test_cases"]]},
            "different functions",
        ),
        ({"verification_info": {"language": "python"}}, "no cases"),
    ],
)
def test_a_broken_row_is_refused_by_column(row: Row, message: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        suite_of(row)
    assert refused.value.fix


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.lists(_json, min_size=1, max_size=3), _json), min_size=1, max_size=3))
def test_arguments_are_the_same_as_a_list_or_as_lines(cases: list[tuple[list[Any], Any]]) -> None:
    lists = {"fn_name": "f", "inputs": [given for given, _ in cases], "outputs": [due for _, due in cases]}
    lines = {
        "fn_name": "f",
        "inputs": ["\n".join(json.dumps(argument) for argument in given) for given, _ in cases],
        "outputs": [json.dumps(due) for _, due in cases],
    }
    if any(due is not None for _, due in cases):
        assert calls_of({"input_output": lists}).cases == calls_of({"input_output": lines}).cases


@given(
    st.sampled_from(sorted(STDIO_ROWS)) | st.sampled_from(sorted(CALL_ROWS)),
    st.dictionaries(
        st.sampled_from(
            [
                "input_output",
                "test_cases",
                "public_tests",
                "public_test_cases",
                "private_test_cases",
                "metadata",
                "verification_info",
                "time_limit",
                "memory_limit",
                "starter_code",
                "reward_model",
            ]
        ),
        _json | st.text(max_size=20),
        max_size=2,
    ),
)
def test_any_row_becomes_a_suite_or_a_data_error(name: str, damage: Row) -> None:
    _, row = (STDIO_ROWS | CALL_ROWS)[name]
    with contextlib.suppress(DataError):
        suite: Suite = suite_of(row | damage)
        assert from_json(to_json(suite)) == suite
