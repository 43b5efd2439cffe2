"""Rows of every format, judged in real cells: a right program passes, wrong and cheating ones do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from areal_judge.judge.formats.registry import suite_of
from areal_judge.judge.judge import Judge
from areal_judge.judge.values import Integrity, Options, Status, Submission

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]

Row = dict[str, Any]

STDIO = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}
SUM = "a, b = map(int, input().split())\nprint(a + b)\n"
ADD = "def add(a, b):\n    return a + b\n"
METHOD = "class Solution:\n    def add(self, a: int, b: int) -> List[int]:\n        return a + b\n"
EQUAL = """\
class Equal(int):
    __eq__ = __lt__ = __gt__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
"""
PROMPT = "import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef mean(xs):\n    '''Mean.'''\n"
PLUS = {"prompt": PROMPT, "entry_point": "mean", "base_input": [[[1, 2]], [[0.1, 0.2]]], "plus_input": [[[3]]]}
MEAN = PROMPT + "    return math.fsum(xs) / len(xs)\n"

PLUS_SCRIPT = """\
import numpy as np
def assertion(out, exp, atol):
    assert out == exp or (atol and np.allclose(out, exp, rtol=1e-07, atol=atol))
for i, (given, due) in enumerate(zip([[1, 2], [0.1, 0.2]], [3, 0.3])):
    assertion(add(*given), due, 1e-6)
"""

ROWS: dict[str, tuple[Row, str, str]] = {
    "native": ({"kind": "stdio", "cases": [{"stdin": "1 2\n", "expected": "3\n"}]}, SUM, "print(input())"),
    "humaneval": (
        {
            "prompt": PROMPT,
            "entry_point": "mean",
            "test": "def check(candidate):\n    assert candidate([1, 2]) == 1.5\n    assert half(mean([2])) == 1\n",
        },
        MEAN,
        EQUAL + "def mean(xs):\n    return Equal(1)\n",
    ),
    "mbpp": (
        {
            "code": ADD,
            "test_list": ["assert add(1, 2) == 3", "assert twice(add(1, 2)) == 6"],
            "test_setup_code": "def twice(x):\r\n    return 2 * x",
        },
        ADD,
        EQUAL + "def add(a, b):\n    return Equal(3)\n",
    ),
    "mbpp plus": (
        {"code": ADD, "test_list": ["assert add(1, 2) == 3"], "test": PLUS_SCRIPT},
        ADD,
        EQUAL + "def add(a, b):\n    return Equal(3)\n",
    ),
    "evalplus, outputs": (PLUS | {"expected_output": [1.5, 0.15, 3.0]}, MEAN, PROMPT + "    return 1.5\n"),
    "evalplus, a reference": (
        PLUS | {"canonical_solution": "    return sum(xs) / len(xs)\n"},
        MEAN,
        EQUAL + "def mean(xs):\n    return Equal(1)\n",
    ),
    "evalplus, an oracle": (
        {
            "task_id": "Mbpp/2",
            "entry_point": "similar_elements",
            "base_input": [[[1, 2], [2, 1]]],
            "base_output": [[1, 2]],
        },
        "def similar_elements(a, b):\n    return set(a) & set(b)\n",
        "def similar_elements(a, b):\n    return ()\n",
    ),
    "apps": ({"input_output": json.dumps(STDIO)}, SUM, "print(3)"),
    "apps, a function": (
        {"input_output": {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}},
        ADD,
        METHOD.replace("+", "-"),
    ),
    "apps, a method": (
        {"input_output": {"fn_name": "add", "inputs": ["1\n2"], "outputs": ["3"]}},
        METHOD,
        "add = None\n",
    ),
    "apps, integer keys": (
        {"input_output": {"fn_name": "f", "inputs": [[{"1": "x"}]], "outputs": [{"2": "x"}]}},
        "def f(d):\n    return {k + 1: v for k, v in d.items()}\n",
        "def f(d):\n    return {'2': 'x'}\n",
    ),
    "taco": ({"input_output": STDIO, "skill_types": "", "time_limit": "2.0 seconds"}, SUM, ""),
    "codecontests": (
        {
            "public_tests": {"input": ["1 2"], "output": ["3"]},
            "time_limit": {"seconds": 1},
            "memory_limit_bytes": 64 << 20,
        },
        SUM,
        "x = bytearray(200 << 20)\nprint(3)\n",
    ),
    "livecodebench": (
        {"public_test_cases": [{"input": "1 2", "output": "3\n", "testtype": "stdin"}]},
        "print('3.0')",
        "print('3 3')",
    ),
    "livecodebench, a function": (
        {
            "public_test_cases": [{"input": "1\n2", "output": "3", "testtype": "functional"}],
            "metadata": '{"func_name": "add"}',
        },
        METHOD,
        "",
    ),
    "sandboxfusion": (
        {"test_cases": STDIO | {"outputs": ["Yes 3.00001", "yes 7"]}},
        SUM.replace("a + b", "'YES', a + b"),
        SUM,
    ),
    "sandboxfusion, asserts": ({"assert_case": ["assert add(1, 2) == 3"]}, ADD, "import sys\nsys.exit(0)\n"),
    "verifiable": (
        {"test_cases": [{"fn_name": "add", "input": [1, 2], "output": 3, "type": "function_call"}]},
        ADD,
        "from operator import add as plus\n",
    ),
}


@pytest.mark.parametrize("name", ROWS)
async def test_a_right_program_passes_and_a_wrong_one_does_not(name: str, judge: Judge) -> None:
    row, right, wrong = ROWS[name]
    suite = suite_of(row)
    found = await judge.judge(Submission(right), suite, Options(reveal=True))
    assert (found.status, found.score) == (Status.PASSED, 1.0), found
    refused = await judge.judge(Submission(wrong), suite, Options(reveal=True))
    assert refused.status is not Status.PASSED
    assert refused.score == 0.0, refused


async def test_tests_that_need_a_class_of_the_program_are_judged_in_its_process(judge: Judge) -> None:
    program = "class Pair:\n    def __init__(self, a):\n        self.a = a\n\n\ndef first(p):\n    return p.a\n"
    suite = suite_of({"code": program, "test_list": ["assert first(Pair(4)) == 4"]})
    found = await judge.judge(Submission(program), suite)
    assert (found.status, found.integrity) == (Status.PASSED, Integrity.IN_PROCESS), found
    wrong = await judge.judge(Submission(program.replace("p.a", "5")), suite)
    assert wrong.score == 0.0
    demanding = await judge.judge(Submission(program), suite, Options(min_integrity=Integrity.SPLIT))
    assert demanding.score is None


async def test_livecodebench_finds_its_preamble_and_numpy_behind_its_own_names(judge: Judge) -> None:
    stdio = {"public_test_cases": [{"input": "3 4\n", "output": "81 25 0 50000\n", "testtype": "stdin"}]}
    source = (
        "from __future__ import annotations\nimport numpy\na, b = map(int, sys.stdin.readline().split())\n"
        "print(pow(a, b, 1000) if pow.__module__ == 'builtins' else '', numpy.dot([a, b], [a, b]), end=' ')\n"
        "print(len(Counter()) + (deque([0])[0]), getrecursionlimit())\n"
    )
    assert (await judge.judge(Submission(source), suite_of(stdio))).status is Status.PASSED
    own = source.replace("print(len(Counter", "def Counter(): return [1]\nprint(len(Counter")
    assert (await judge.judge(Submission(own), suite_of(stdio))).status is Status.WRONG_ANSWER
    call = {
        "public_test_cases": [{"input": "3\n", "output": "1", "testtype": "functional"}],
        "metadata": {"func_name": "odd"},
    }
    right = "class Solution:\n    def odd(self, n: int) -> Optional[bool]:\n        return gcd(n, 2) == 1\n"
    assert (await judge.judge(Submission(right), suite_of(call))).status is Status.PASSED
    assert (await judge.judge(Submission(""), suite_of(call))).status is not Status.PASSED


async def test_sets_whose_graders_offer_numpy_offer_it(judge: Judge) -> None:
    source = "import numpy as np\nprint(int(np.sum(np.fromstring(input(), sep=' '))))\n"
    for name in ("apps", "taco"):
        row = {"input_output": STDIO} | ({"skill_types": "[]"} if name == "taco" else {})
        assert (await judge.judge(Submission(source), suite_of(row))).status is Status.PASSED, name
