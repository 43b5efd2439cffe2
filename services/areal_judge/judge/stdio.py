"""Judges a StdioSuite: a process a case, which reads its standard input and prints.

The expected output stays here. A case's input gets the line end that it lacks: many data sets strip it, and many
programs read by lines. Source is never parsed here: that a script is no Python is known from its first run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from areal.errors import DataError

from areal_judge.judge import checkers
from areal_judge.judge import custom_checker as custom
from areal_judge.judge.endings import case_of, of_output
from areal_judge.judge.record import AttemptRecord, shorten
from areal_judge.judge.values import CaseResult, Status, StdioCase, StdioSuite
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Ending, Limits, ProgramRun, PythonScript, RunEnding

_IN_THREAD_BYTES = 64 << 10  # a longer output is compared beside the event loop
_SHOWN_CHARS = 200
_REFUSALS = ("SyntaxError: ", "IndentationError: ", "TabError: ")
_PLACE = '  File "main.py", line '  # the sandbox calls every script so

RunOf = Callable[[bytes, Limits], ProgramRun]


async def judge_stdio(sandbox: Sandbox, run_of: RunOf, suite: StdioSuite, record: AttemptRecord) -> None:
    """Adds the cases to the record. Raises DataError for a suite that can't be judged, InfraError."""
    for case in suite.cases:
        if record.over:
            return
        if record.left_s <= 0:
            detail = f"all cases together took over {record.options.total_s:g} s"
            record.add(CaseResult(0, Status.TIME_LIMIT, detail=detail))
            record.skip_rest()
            return
        limits = replace(suite.limits, wall_s=min(suite.limits.wall_s, record.left_s))
        run = run_of(stdin_of(case), limits)
        if suite.needs_numpy and isinstance(run.entry, PythonScript):
            run = replace(run, numpy=True)
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
        opinion = await custom.accepts(sandbox, suite.checker.program, stdin_of(case), ended.stdout, answer)
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
