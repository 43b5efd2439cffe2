"""Inside a cell: runs test code and the program that it tests in one process.

For tests that need the program's own classes. The program can do to the tests what it likes; a token that only this
module is told keeps out the simplest forgery, and the judgement says `IN_PROCESS`. Frames:
  ← (cases, token, count) | (broken, token, name, message)       before the program's first instruction
  ← (failed, token, kind, name, message, line)                   the program can't be loaded
  ← (case, token, index, verdict, name, message, line)           one for each case, in order
  ← (done, token, calls)                                         and a clean end
"""

from __future__ import annotations

import os
import socket
from typing import Any

from areal_judge.judge.drivers import cases, loading
from areal_judge.judge.drivers.cases import PASSED, PROGRAM, Tests, verdict_of
from areal_judge.judge.drivers.wire import SessionWire, describe

_exit = os._exit


def run(
    channel: socket.socket, token: bytes, prelude: str, test: str, entry_point: str, source: str, run_all: bool
) -> int:
    """Runs the tests."""
    wire = SessionWire(channel)
    try:
        tests = Tests(test, entry_point)
        tests.prepare(prelude)
        fallback = loading.run_prelude(prelude, entry_point)
    except BaseException as error:
        wire.send("broken", token, *describe(error))
        return 0
    wire.send("cases", token, tests.count)
    kind = "refused"
    try:
        program = loading.ParsedProgram(source, fallback)
        kind = "raised"
        program.run()
        tests.bind(program.entry(entry_point)(), _public(program))
    except BaseException as error:
        if isinstance(error, SystemExit | loading.NoEntryPointError):
            kind = "exited" if isinstance(error, SystemExit) else "missing"
        wire.send("failed", token, kind, *describe(error), loading.line_of(error))
        return 0
    _run(wire, token, tests, run_all)
    wire.send("done", token, 1)
    _exit(0)  # without the program's exit hooks
    return 0


def _run(wire: SessionWire, token: bytes, tests: Tests, run_all: bool) -> None:
    for index, case in enumerate(tests.cases()):
        verdict, name, message, line = PASSED, "", "", None
        try:
            case()
        except BaseException as error:
            name, message = describe(error)
            line = cases.line_of(error)
            within = loading.line_of(error) is not None
            verdict = PROGRAM if within and not isinstance(error, AssertionError) else verdict_of(error, 1, tests)
        wire.send("case", token, index, verdict, name, message, line)
        if verdict != PASSED and not run_all:
            return


def _public(program: loading.ParsedProgram) -> dict[str, Any]:
    return {name: value for name, value in program.module.__dict__.items() if not name.startswith("__")}
