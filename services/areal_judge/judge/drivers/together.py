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
from functools import partial

from areal_judge.judge.drivers import loading
from areal_judge.judge.drivers.cases import PROGRAM, Tests, run_cases, verdict_of
from areal_judge.judge.drivers.wire import SessionWire, describe, line_of

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
        public = {name: value for name, value in program.module.__dict__.items() if not name.startswith("__")}
        tests.bind(program.entry(entry_point)(), public)
    except BaseException as error:
        if isinstance(error, SystemExit | loading.NoEntryPointError):
            kind = "exited" if isinstance(error, SystemExit) else "missing"
        wire.send("failed", token, kind, *describe(error), line_of(error, loading.FILE))
        return 0

    def verdict(error: BaseException) -> str:
        within = line_of(error, loading.FILE) is not None
        return PROGRAM if within and not isinstance(error, AssertionError) else verdict_of(error, 1, tests)

    run_cases(tests, verdict, partial(wire.send, "case", token), run_all=run_all)
    wire.send("done", token, 1)
    _exit(0)  # without the program's exit hooks
    return 0
