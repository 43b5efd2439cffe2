"""Test code in one cell, the program in another: what crosses between them, and what it means."""

from __future__ import annotations

import asyncio

import pytest
from areal_judge.judge.drivers import DRIVERS
from areal_judge.judge.judge import Judge
from areal_judge.judge.values import AssertSuite, Options, Scoring, Status, Submission
from areal_judge.sandbox.host.runner import Sandbox, SandboxConfig

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]

RAISES = "try:\n    f(-1)\nexcept {}:\n    pass\nelse:\n    assert False"


@pytest.mark.parametrize(
    ("test", "source", "status"),
    [
        ("x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]", "def f(x): x.sort()", Status.PASSED),
        ("x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]", "def f(x): sorted(x)", Status.WRONG_ANSWER),
        ("x = {'a': [1]}\ny = x['a']\ncandidate(x)\nassert y == [1, 2] and x['b'] == 3",
         "def f(x):\n    x['a'].append(2)\n    x['b'] = 3", Status.PASSED),
        ("s = {1}\nf(s)\nassert s == {1, 2}", "def f(s): s.add(2)", Status.PASSED),
        ("x = [3, 1]\nassert f(x) == sorted(x)", "def f(x):\n    x.clear()\n    return x", Status.WRONG_ANSWER),
        ("try:\n    f(-1)\nexcept ValueError as e:\n    assert 'low' in str(e)\nelse:\n    assert False",
         "def f(n): raise ValueError('too low')", Status.PASSED),
        ("try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False", "def f(n): return n",
         Status.WRONG_ANSWER),
        ("assert f(1) == 2", "def f(n): raise ValueError('no')", Status.RUNTIME_ERROR),
        ("assert f(1) == 2", "class Odd(Exception): pass\ndef f(n): raise Odd('no')", Status.RUNTIME_ERROR),
        ("assert f(1) == 2", "def f(n): raise AssertionError('mine')", Status.RUNTIME_ERROR),
        ("assert f(1) == 2", "def f(n): raise NameError('mine')", Status.RUNTIME_ERROR),
        (RAISES.format("ValueError"), "class Mine(ValueError): pass\ndef f(n): raise Mine('low')", Status.PASSED),
        (RAISES.format("ValueError"), "class ValueError(Exception): pass\ndef f(n): raise ValueError('low')",
         Status.RUNTIME_ERROR),
        (RAISES.format("Exception"), "class Odd(Exception): pass\ndef f(n): raise Odd('no')", Status.PASSED),
        (RAISES.format("Exception"), "import sys\ndef f(n): sys.exit(0)", Status.RUNTIME_ERROR),
        (RAISES.format("Exception"), "def f(n): raise KeyboardInterrupt", Status.RUNTIME_ERROR),
        (RAISES.format("Exception"), "class Odd(BaseException): pass\ndef f(n): raise Odd", Status.RUNTIME_ERROR),
        (RAISES.format("Exception"), "def f(n): raise BaseExceptionGroup('no', [KeyboardInterrupt()])",
         Status.RUNTIME_ERROR),
        (RAISES.format("SystemExit"), "import sys\ndef f(n): sys.exit(0)", Status.PASSED),
        ("assert all(map(lambda n: f(n) == 2 * n, [1, 2]))", "def f(n): raise StopIteration", Status.RUNTIME_ERROR),
        ("assert all(map(lambda n: f(n) == 2 * n, [1, 2]))", "class End(StopIteration): pass\ndef f(n): raise End",
         Status.RUNTIME_ERROR),
        ("assert eval(f(1)) == 2", "def f(n): return 'nobody'", Status.WRONG_ANSWER),
        ("assert eval(f(1)) == 2", "def f(n): return '(' * n", Status.WRONG_ANSWER),
        ("assert eval(f(1)) == 2", "def f(n): return '__import__(\"nothing_of_this_name\")'", Status.WRONG_ANSWER),
        ("assert f(1) < 2", "def f(n): return None", Status.WRONG_ANSWER),
        ("assert len(f(1)) == 2", "def f(n): return 7", Status.WRONG_ANSWER),
        ("assert f(1) == 2", "def f(n): return f", Status.BAD_RESULT_TYPE),
        ("try:\n    assert f(1) == 2\nexcept BaseException:\n    pass", "def f(n): return f", Status.BAD_RESULT_TYPE),
        ("assert f(1) == 2", "def f(n):\n    while True: pass", Status.TIME_LIMIT),
        ("try:\n    assert f(1) == 2\nexcept BaseException:\n    pass", "import os\ndef f(n): os._exit(0)",
         Status.PROTOCOL_VIOLATION),
        ("from collections import Counter\nassert f('aab') == {'a': 2, 'b': 1}",
         "from collections import Counter\ndef f(s): return Counter(s)", Status.PASSED),
        ("assert f(n=1, k={'a': (1,)}) == (1, {'a': (1,)})", "def f(n, k): return n, k", Status.PASSED),
        ("def check(candidate):\n    assert candidate(2) == helper(2)", "def f(n): return helper(n)", Status.PASSED),
        ("def check(candidate):\n    assert candidate(2) == 4\ncheck(f)", "def f(n): return n * n", Status.PASSED),
        ("assert f.__name__ == 'f'\nassert f(2) == 4", "def f(n): return n * n", Status.PASSED),
        ("assert f(f(2)) == 16", "def f(n): return n * n", Status.PASSED),
        *[(f"r = f(1)\nassert {use}", source, Status.WRONG_ANSWER) for source, use in (
            ("def f(n):\n    r = []\n    for _ in range(58): r = [r]\n    return r", "f([[[r]]]) == r"),
            ("def f(n): return 1 << 9000", "f(r * r) == 1"),
            ("def f(n): return 'x' * 600_000", "f(r + r) == 1"),
            ("def f(n): return []", "[last := one for one in r] is not None and last == 1"),
            ("def f(n): return 0", "(__import__('sys').exit(r), True)"),
            ("def f(n): return 0", "(__import__('os')._exit(r), True)"),
            ("def f(n): return 'nothing_like_it'", "__import__(r)"),
            ("def f(n): return 1 << 9000", "'{}'.format(r) and f(10 ** 9 * r ** 2)"),
        )],
        ("for one in f(3):\n    last = one\nassert last == 2", "def f(n): return []", Status.WRONG_ANSWER),
        ("for i in range(50):\n    assert f(i) == i * i", "def f(n): return n * n", Status.PASSED),
    ],
)  # fmt: skip
async def test_calls_cross_by_value(judge: Judge, test: str, source: str, status: Status) -> None:
    suite = AssertSuite(test, "f", prelude="def helper(n): return n * n")
    found = await judge.judge(Submission(source), suite, Options(total_s=1.5))
    assert (found.status, found.score) == (status, float(status is Status.PASSED)), found.message


async def test_arguments_come_back_when_the_suite_says_so(judge: Judge) -> None:
    test = "x = [3, 3, 1]\nk = f(x)\nassert x[:k] == [1]"
    source = Submission("def f(x):\n    x[:] = [1]\n    return 1")
    assert (await judge.judge(source, AssertSuite(test, "f"))).score == 0.0
    assert (await judge.judge(source, AssertSuite(test, "f", updates_arguments=True))).score == 1.0


async def test_each_assert_is_a_case(judge: Judge) -> None:
    suite = AssertSuite("assert f(1) == 1\nassert f(2) == 4\nassert f(3) == 9", "f")
    program = Submission("def f(n):\n    if n == 2: raise ValueError\n    return n * n")
    found = await judge.judge(program, suite, Options(scoring=Scoring.FRACTION))
    assert [case.status for case in found.cases] == [Status.PASSED, Status.RUNTIME_ERROR, Status.PASSED]
    assert found.score == pytest.approx(2 / 3)
    found = await judge.judge(program, suite)
    assert [case.status for case in found.cases] == [Status.PASSED, Status.RUNTIME_ERROR, Status.SKIPPED]


async def test_methods_are_called_on_a_fresh_object(judge: Judge) -> None:
    suite = AssertSuite(
        "assert Solution().f(1) == 1\nassert Solution().f(1) == 1\nassert candidate(1) == 1", "Solution.f"
    )
    program = Submission("class Solution:\n    n = 0\n    def f(self, k):\n        self.n += k\n        return self.n")
    assert (await judge.judge(program, suite)).score == 1.0


@pytest.mark.asyncio(loop_scope="function")
async def test_split_tests_at_once_need_no_more_slots_than_there_are() -> None:
    sandbox = Sandbox(SandboxConfig(zygotes=1, spares=1, max_runs=1, drivers=DRIVERS))
    await sandbox.start()
    try:
        judge, suite = Judge(sandbox), AssertSuite("assert f(1) == 2", "f")
        async with asyncio.timeout(60):
            asks = (judge.judge(Submission("def f(n): return n + 1"), suite) for _ in range(3))
            assert [found.status for found in await asyncio.gather(*asks)] == [Status.PASSED] * 3
    finally:
        await sandbox.stop()
