"""Grades of answers by the verifiers of training: mathematical equality, or tests of a program in the sandbox.

A grade is a score, or None where the grader failed; an answer that a server refused, or without a program, scores 0.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
from areal.errors import InfraError
from areal.v1 import reward_pb2 as pb

from areal_judge.evaluate.asking import ModelAnswer
from areal_judge.evaluate.local_judge import Demands, local_judge
from areal_judge.evaluate.suite_rows import SuiteQuestion
from areal_judge.judge.extract import program_of
from areal_judge.judge.judge import Judge
from areal_judge.judge.values import Judgement, Options, Submission, Suite
from areal_judge.mathematics import MathScorer

ANSWER_FIELD = "answer"  # of the rows that a verifier of mathematics is given
_TOGETHER = 256  # answers graded in one call
_TOTAL_S = 60.0  # of one program with all of its tests


@dataclass(frozen=True)
class Grade:
    """What an answer is worth; `score` is None when it could not be graded."""

    score: float | None
    status: str


REFUSED, NO_PROGRAM = Grade(0.0, "REFUSED"), Grade(0.0, "NO_PROGRAM")


async def grade_math(
    questions: Sequence[SuiteQuestion],
    answers: Sequence[ModelAnswer],
    verifier: MathScorer,
    done: Callable[[int], None] = lambda count: None,
) -> list[Grade]:
    """Grades by mathematical equality with the expected answers. Stops `verifier` at the end."""
    grades: list[Grade] = []
    try:
        for start in range(0, len(answers), _TOGETHER):
            part = answers[start : start + _TOGETHER]
            items = [
                pb.ScoreItem(
                    verifier="math",
                    completion=answer.text,
                    row_json=orjson.dumps({ANSWER_FIELD: questions[answer.question].answer}),
                )
                for answer in part
            ]
            results = await verifier.score(items)
            grades += [
                REFUSED if answer.refused else _grade(result) for answer, result in zip(part, results, strict=True)
            ]
            done(len(part))
    finally:
        await verifier.stop()
    return grades


def _grade(result: pb.ScoreResult) -> Grade:
    match result.WhichOneof("outcome"):
        case "verdict":
            return Grade(result.verdict.score, result.verdict.status)
        case "score":
            return Grade(result.score, "SCORED")
        case _:
            return Grade(None, result.fault.message.partition("\n")[0] or "FAULT")


async def grade_code(
    questions: Sequence[SuiteQuestion],
    answers: Sequence[ModelAnswer],
    demands: Demands,
    done: Callable[[int], None] = lambda count: None,
) -> list[Grade]:
    """Grades by the tests of each question's program: 1 when all pass."""
    grades: dict[int, Grade] = {}
    attempts: list[ProgramAttempt] = []
    places: list[int] = []
    for place, answer in enumerate(answers):
        tests = questions[answer.question].tests
        assert tests is not None, "questions of programs have tests"
        program = answer.program or program_of(answer.text, "python")
        if program is None:
            grades[place] = REFUSED if answer.refused else NO_PROGRAM
            continue
        places.append(place)
        attempts.append(ProgramAttempt(Submission(program), tests))
    done(len(grades))
    if attempts:
        options = Options(min_tier=demands.min_tier, total_s=_TOTAL_S)
        async with local_judge(demands) as (judge, _):
            outcomes = await judge_all(judge, attempts, options, os.cpu_count() or 1, lambda outcome: done(1))
        for place, outcome in zip(places, outcomes, strict=True):
            grades[place] = Grade(outcome.judgement.score, outcome.judgement.status.value)
    return [grades[place] for place in range(len(answers))]


# ---- Judges many programs at once and keeps what came out, in order
# A judgement without a score says nothing about the program: it is asked for again, a few times, and then counts as
# unjudged, never as wrong.


GIVE_UP = 16  # attempts without one judgement
ASKED = 3  # times, while the judge says that asking again may help


@dataclass(frozen=True)
class ProgramAttempt:
    """One program, and what judges it."""

    submission: Submission
    suite: Suite


@dataclass(frozen=True)
class AttemptOutcome:
    """What became of an attempt."""

    attempt: ProgramAttempt
    judgement: Judgement


async def judge_all(
    judge: Judge,
    attempts: Sequence[ProgramAttempt],
    options: Options,
    jobs: int,
    done: Callable[[AttemptOutcome], None] = lambda outcome: None,
) -> list[AttemptOutcome]:
    """Judges attempts, at most `jobs` at a time; outcomes in the order of the attempts. `done` hears of each.

    Raises InfraError when nothing of the first ones could be judged: the rest would fare no better.
    """
    outcomes: dict[int, AttemptOutcome] = {}
    waiting = iter(range(len(attempts)))

    def hopeless() -> bool:
        return len(outcomes) >= GIVE_UP and all(outcome.judgement.retryable for outcome in outcomes.values())

    async def work() -> None:
        for index in waiting:
            outcomes[index] = AttemptOutcome(attempts[index], await _judge(judge, attempts[index], options))
            done(outcomes[index])
            if hopeless():
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(max(1, min(jobs, len(attempts)))):
            group.create_task(work())
    if len(outcomes) < len(attempts):
        first = next(iter(outcomes.values())).judgement
        what = first.message.partition("\n")[0] or first.status.value
        raise InfraError(f"nothing can be judged here: {what}", fix="see areal reward capabilities, and try again")
    return [outcomes[index] for index in range(len(attempts))]


async def _judge(judge: Judge, attempt: ProgramAttempt, options: Options) -> Judgement:
    for _ in range(ASKED - 1):
        judgement = await judge.judge(attempt.submission, attempt.suite, options)
        if judgement.score is not None or not judgement.retryable:
            return judgement
    return await judge.judge(attempt.submission, attempt.suite, options)
