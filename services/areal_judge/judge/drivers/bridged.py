"""Inside a cell: runs trusted test code against a program that lives in another one.

`candidate` and the name of the entry point are bound to a proxy: a call's arguments go out, the result comes back as
plain values. So an assert compares values that no code of the program can have touched. Requests and answers:
                            ← (cases, count) | (broken, name, message)
  → go, run_all             ← (call, arguments, keywords, bring_back)
                                                    → (result, value, arguments) | (error, name, message, family)
                            ← (case, index, verdict, name, message, line)   verdict: passed failed program broken
                            ← (done, calls)
A case is a statement at the top of the test code that asserts, with those before it; `check(candidate)` is one case.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from areal_judge.judge import codec
from areal_judge.judge.codec import CodecError
from areal_judge.judge.drivers import calls, cases
from areal_judge.judge.drivers.cases import PROGRAM, TestCodeFault, Tests, UncarriedError, run_cases, verdict_of
from areal_judge.judge.drivers.wire import REQUEST_BYTES, REQUEST_NODES, SessionWire, describe


def run(channel: socket.socket, prelude: str, test: str, entry_point: str, updates_arguments: bool | None) -> int:
    """Runs the tests."""
    wire = SessionWire(channel)
    proxy = _Proxy(wire)
    try:
        tests = Tests(test, entry_point)
        proxy.brings_back = tests.discards_results() if updates_arguments is None else updates_arguments
        tests.prepare(prelude)
        tests.bind(proxy.function(entry_point))
    except BaseException as error:
        wire.send("broken", *describe(error))
        return 0
    wire.send("cases", tests.count)
    request = wire.receive()

    def verdict(error: BaseException) -> str:
        return PROGRAM if error is proxy.raised else verdict_of(error, proxy.calls, tests)

    if request is not None:
        run_cases(tests, verdict, partial(wire.send, "case"), run_all=request[1])
        wire.send("done", proxy.calls)
    return 0


class _Proxy:
    """The program, as the tests see it."""

    def __init__(self, wire: SessionWire) -> None:
        self._wire = wire
        self.calls = 0
        self.brings_back = False
        self.raised: BaseException | None = None  # what the program's last call raised

    def function(self, name: str) -> Callable[..., Any]:
        def candidate(*arguments: Any, **keywords: Any) -> Any:
            return self._call(arguments, keywords)

        candidate.__name__ = candidate.__qualname__ = name.rpartition(".")[2]
        return candidate

    def _call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        self.calls += 1
        try:
            self._wire.send("call", *_plain(arguments, keywords), self.brings_back)
        except (CodecError, calls.ForeignTypeError) as error:
            words = f"{error}: the program can't be given it in another process"
            raise (TestCodeFault(words) if self.calls == 1 else UncarriedError(words)) from None
        answer = self._wire.receive()
        if answer is None:
            os._exit(0)
        if answer[0] == "result":
            if answer[2] is not None:
                _update(list(arguments), list(answer[2]))
            return answer[1]
        self.raised = cases.exception_of(*answer[1:])
        raise self.raised


def _plain(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Any]:
    for value in (arguments, keywords):
        try:
            codec.encode(value, max_bytes=REQUEST_BYTES, max_nodes=REQUEST_NODES)
            yield value
        except CodecError:
            yield calls.plain(value)


def _update(mine: Any, theirs: Any) -> Any:
    """Gives the test's own objects the content that the program left in its copies; what the test now holds."""
    if type(mine) is not type(theirs):
        return theirs
    if isinstance(mine, list):
        both = [_update(old, new) for old, new in zip(mine, theirs, strict=False)]
        mine[:] = [*both, *theirs[len(both) :]]
        return mine
    if isinstance(mine, dict):
        content = {key: _update(mine[key], value) if key in mine else value for key, value in theirs.items()}
        mine.clear()
        mine.update(content)
        return mine
    if isinstance(mine, set):
        mine.clear()
        mine.update(theirs)
        return mine
    return theirs
