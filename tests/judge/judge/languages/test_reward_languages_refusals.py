"""A script that is no Python is a compile error, told from the one run that it takes."""

from __future__ import annotations

import pytest
from areal_judge.judge.judge import Judge
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.judge.values import Options, Scoring, Status, StdioCase, StdioSuite, Submission
from areal_judge.sandbox.host.runner import Sandbox

SUITE = StdioSuite(tuple(StdioCase(f"{number}\n", f"{number}\n") for number in range(3)))
REFUSED = {
    "def f(:\n": "SyntaxError: invalid syntax (line 1)",
    "x = 1\n  y = 2\n": "IndentationError: unexpected indent (line 2)",
    "if 1:\n\tx = 1\n        y = 2\n": "TabError: inconsistent use of tabs and spaces in indentation (line 3)",
    "x = 1\nx is 1\nreturn x\n": "SyntaxError: 'return' outside function (line 3)",
}
RUN = {
    "an error of another source": "eval('1 +')",
    "an error of another file": "compile('1 +', 'main.py', 'exec')",
    "an error that is raised": "raise SyntaxError('invalid syntax')",
    "an error after some output": "print(1, flush=True)\nexec('1 +')",
    "an exit": "import sys\nsys.exit('SyntaxError: invalid syntax')",
}


@pytest.mark.component
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("source", REFUSED)
async def test_source_that_is_no_python_is_a_compile_error_of_one_run(
    cells: Sandbox, toolchains: Toolchains, source: str
) -> None:
    judge = Judge(cells, toolchains)
    found = await judge.judge(Submission(source), SUITE, Options(run_all=True))
    assert (found.status, found.score) == (Status.COMPILE_ERROR, 0.0)
    assert found.message == REFUSED[source]
    assert [case.status for case in found.cases] == [Status.COMPILE_ERROR, Status.SKIPPED, Status.SKIPPED]


@pytest.mark.component
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("source", RUN.values(), ids=list(RUN))
async def test_a_program_that_ran_is_no_compile_error(cells: Sandbox, toolchains: Toolchains, source: str) -> None:
    found = await Judge(cells, toolchains).judge(Submission(source), SUITE)
    assert found.status is Status.RUNTIME_ERROR


@pytest.mark.component
@pytest.mark.asyncio(loop_scope="module")
async def test_pretending_to_be_refused_gains_nothing(cells: Sandbox, toolchains: Toolchains) -> None:
    source = (
        "import sys\nif (n := input()) == '0':\n    print(n)\nelse:\n"
        "    sys.exit('  File \"main.py\", line 1\\nSyntaxError: invalid syntax')\n"
    )
    found = await Judge(cells, toolchains).judge(Submission(source), SUITE, Options(scoring=Scoring.FRACTION))
    assert found.score == pytest.approx(1 / 3)
    assert found.cases[2].status is Status.SKIPPED
