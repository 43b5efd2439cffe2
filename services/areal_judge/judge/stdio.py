"""Judges a StdioSuite: a process a case, which reads its standard input and prints.

The expected output stays here. A case's input gets the line end that it lacks: many data sets strip it, and many
programs read by lines. Source is never parsed here: that a script is no Python is known from its first run.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from areal.errors import DataError

from areal_judge.judge import checkers, codec
from areal_judge.judge.drivers import TESTER
from areal_judge.judge.drivers.wire import REQUEST_BYTES
from areal_judge.judge.program import case_of, of_output
from areal_judge.judge.record import AttemptRecord, shorten
from areal_judge.judge.values import CaseResult, Status, StdioCase, StdioSuite
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Driver, Ending, Limits, ProgramRun, PythonScript, RunEnding

_IN_THREAD_BYTES = 64 << 10  # a longer output is compared beside the event loop
_SHOWN_CHARS = 200
_REFUSALS = ("SyntaxError: ", "IndentationError: ", "TabError: ")
_PLACE = '  File "main.py", line '  # the sandbox calls every script so

RunOf = Callable[[bytes, Limits], ProgramRun]
_CHECKER_LIMITS = Limits(wall_s=10.0, cpu_s=10.0)
_ACCEPTED = 0
_REFUSED = frozenset({1, 2})  # testlib: wrong answer, presentation


async def judge_stdio(sandbox: Sandbox, run_of: RunOf, suite: StdioSuite, record: AttemptRecord) -> None:
    """Adds the cases to the record. Raises DataError for a suite that can't be judged, InfraError."""
    for case in suite.cases:
        if record.over:
            return
        if record.left_s <= 0:
            record.out_of_time()
            return
        limits = replace(suite.limits, wall_s=min(suite.limits.wall_s, record.left_s))
        run = run_of(stdin_of(case), limits)
        if isinstance(run.entry, PythonScript):
            run = replace(run, numpy=suite.needs_numpy, entry=replace(run.entry, prelude=suite.prelude))
        ended = await sandbox.run(run)
        record.spent_s += ended.wall_s
        record.saw(ended)
        if isinstance(run.entry, PythonScript) and (why := refusal(ended)):
            record.add(case_of(Status.COMPILE_ERROR, why, ended))
            record.skip_rest()
            return
        started = time.monotonic()
        result, exhausted = await _judged(sandbox, suite, case, ended, record)
        record.add(result)
        if exhausted:
            record.skip_rest()
        record.judge_s += time.monotonic() - started


def stdin_of(case: StdioCase) -> bytes:
    """A case's input, with a line end behind its last line."""
    text = case.stdin if not case.stdin or case.stdin.endswith("\n") else case.stdin + "\n"
    return text.encode("utf-8", "surrogateescape")


def refusal(ended: RunEnding) -> str:
    """What Python has against a script's source; empty where it has run. Pure.

    A script that Python refuses prints nothing, and of the script its error names a place only, no frame: no line has
    run. A program that pretends so fails the cases that follow too, and gains nothing.
    """
    if ended.ending is not Ending.EXITED or ended.exit_code != 1 or ended.stdout:
        return ""
    lines = ended.stderr.decode("utf-8", "replace").rstrip("\n").split("\n")
    places = [line.removeprefix(_PLACE) for line in lines if line.startswith(_PLACE)]
    if len(places) != 1 or not places[0].isdecimal() or not lines[-1].startswith(_REFUSALS):
        return ""  # a frame is "1, in <module>"
    return f"{lines[-1]} (line {places[0]})"


async def _judged(
    sandbox: Sandbox, suite: StdioSuite, case: StdioCase, ended: RunEnding, record: AttemptRecord
) -> tuple[CaseResult, bool]:
    """A case's result, and whether its output exhausted the checker."""
    status, detail = of_output(ended, ignore_exit_code=suite.ignore_exit_code)
    if status is not Status.PASSED:
        return case_of(status, detail, ended), False
    if suite.checker.name == checkers.CUSTOM:
        answer = case.expected.encode("utf-8", "surrogateescape")
        opinion = await _accepts(sandbox, suite.checker.program, stdin_of(case), ended.stdout, answer)
        if opinion.trouble:
            detail = f"the checker came to no verdict over this output: {opinion.trouble}"
            return case_of(Status.WRONG_ANSWER, detail, ended), opinion.exhausted
        right = opinion.accepted
    else:
        right = await _compared(suite, case, ended.stdout)
    if right:
        return case_of(Status.PASSED, "", ended), False
    detail = "wrong output"
    if record.options.reveal:
        detail += (
            f": expected {shorten(repr(case.expected), _SHOWN_CHARS)} for {shorten(repr(case.stdin), _SHOWN_CHARS)}"
        )
    return case_of(Status.WRONG_ANSWER, detail, ended), False


async def _compared(suite: StdioSuite, case: StdioCase, output: bytes) -> bool:
    try:
        if len(output) > _IN_THREAD_BYTES:
            return await asyncio.to_thread(checkers.check, suite.checker, output, case.expected)
        return checkers.check(suite.checker, output, case.expected)
    except KeyError:
        message = f"unknown checker {suite.checker.name!r}"
        raise DataError(message, fix=f"use one of {', '.join(checkers.NAMES)}") from None


@dataclass(frozen=True)
class CheckerOpinion:
    """What a checker says of an output."""

    accepted: bool = False
    trouble: str = ""  # why there is no verdict: it raised, took too long, ended with a code of its own
    exhausted: bool = False  # it ran into a limit, so each further output like this costs as much again


async def _accepts(sandbox: Sandbox, source: str, stdin: bytes, output: bytes, answer: bytes) -> CheckerOpinion:
    """Whether a suite's own checker program, in a cell of its own, accepts an output: only it may be led astray by one.

    One over which the checker comes to no verdict is refused: a program must not gain by printing it. Only a checker
    that comes to none over the expected answer either is at fault itself; where nothing is expected that can't be seen.

    Raises DataError for a checker at fault, InfraError.
    """
    opinion = await _asked(sandbox, source, stdin, output, answer)
    if opinion.trouble and answer.strip():
        of_answer = await _asked(sandbox, source, stdin, answer, answer)
        if of_answer.trouble:
            raise DataError(
                f"the custom checker gave no verdict: {of_answer.trouble}",
                fix="end it with 0 (accepted), 1 (wrong) or 2 (presentation)",
            )
    return opinion


async def _asked(sandbox: Sandbox, source: str, stdin: bytes, output: bytes, answer: bytes) -> CheckerOpinion:
    payload = codec.encode(("checker", source, stdin, output, answer), max_bytes=REQUEST_BYTES)
    async with sandbox.session(ProgramRun(Driver(TESTER, payload), limits=_CHECKER_LIMITS)) as session:
        ended = await session.finish(_CHECKER_LIMITS.wall_s)
    if ended.ending is Ending.EXITED and ended.exit_code == _ACCEPTED:
        return CheckerOpinion(accepted=True)
    if ended.ending is Ending.EXITED and ended.exit_code in _REFUSED and not ended.stderr.startswith(b"Traceback"):
        return CheckerOpinion()
    words = ended.stderr[-2000:].decode("utf-8", "replace").strip().splitlines()
    ended_itself = ended.ending in (Ending.EXITED, Ending.SIGNALED)
    how = f"exit code {ended.exit_code}" if ended.ending is Ending.EXITED else ended.ending.value
    return CheckerOpinion(trouble=f"{how}{': ' + words[-1] if words else ''}", exhausted=not ended_itself)
