"""Judges many programs at once and keeps what came out, in order.

A judgement without a score says nothing about the program: it is asked for again, a few times, and then counts as
unjudged, never as wrong.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from areal.errors import InfraError

from areal_judge.judge.judge import Judge
from areal_judge.judge.values import Judgement, Options, Submission, Suite

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
