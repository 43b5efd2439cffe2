"""What drivers do inside a cell, tried without one: loading, results made plain, frames over a socket pair."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
from areal_judge.judge import codec
from areal_judge.judge.drivers import calls, cases
from areal_judge.judge.drivers.loading import NoEntryPointError, ParsedProgram, run_prelude

Point = namedtuple("Point", "x y")


class LyingPoint(Point):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = Point.__hash__


def test_classes_that_behave_as_builtins_become_them() -> None:
    value = [Counter("aab"), OrderedDict(b=1), defaultdict(list, {"a": [Point(1, 2)]}), {Point(3, 4): None}, True, b"x"]
    made = calls.plain(value)
    assert made == [{"a": 2, "b": 1}, {"b": 1}, {"a": [(1, 2)]}, {(3, 4): None}, True, b"x"]
    assert codec.decode(codec.encode(made)) == made


def test_numbers_of_numpy_become_builtins() -> None:
    numpy = pytest.importorskip("numpy")
    made = calls.plain([numpy.int64(3), numpy.float64(0.5), numpy.bool_(True)])
    assert [(type(value), value) for value in made] == [(int, 3), (float, 0.5), (bool, True)]
    with pytest.raises(calls.ForeignTypeError):
        calls.plain(numpy.arange(3))


@pytest.mark.parametrize(
    ("value", "posing"),
    [(object(), False), (iter(()), False), (type("I", (int,), {})(3), True), (LyingPoint(1, 2), True),
     (type("E", (), {"__eq__": lambda self, other: True})(), True)],
)  # fmt: skip
def test_other_types_are_refused_and_told_apart(value: Any, posing: bool) -> None:
    with pytest.raises(calls.ForeignTypeError) as refusal:
        calls.plain([value])
    assert refusal.value.posing is posing


def loaded(source: str, prelude: str = "") -> ParsedProgram:
    program = ParsedProgram(source, run_prelude(prelude, "f"))
    program.run()
    return program


def test_a_prelude_serves_the_program_and_never_stands_for_it() -> None:
    prelude = "from math import *\ndef f(): return 'prelude'\ndef helper(): return 1"
    assert loaded("def f(): return floor(1.5) + helper()", prelude).entry("f")()() == 2
    for source in ("", "x = 1", "def g(): return f()", "import math"):
        with pytest.raises(NoEntryPointError):
            loaded(source, prelude).entry("f")
    with pytest.raises(NoEntryPointError):
        loaded("from math import *").entry("floor")
    assert loaded("from math import floor").entry("floor")()(1.5) == 1
    with pytest.raises(NameError):
        loaded("def g(): return f()", prelude).entry("g")()()


def test_methods_get_a_fresh_object() -> None:
    program = loaded("class Solution:\n    n = 0\n    def f(self):\n        self.n += 1\n        return self.n")
    for name in ("f", "Solution.f"):
        entry = program.entry(name)
        assert [entry()(), entry()()] == [1, 1]
    with pytest.raises(NoEntryPointError):
        program.entry("Solution.g")


@pytest.mark.parametrize(
    ("test", "count"),
    [
        ("assert f(1)\nassert f(2)", 2),
        ("def check(candidate):\n    assert candidate(1)", 1),
        ("def check(candidate):\n    assert candidate(1)\ncheck(f)", 1),
        ("x = 1\nfor i in range(3):\n    assert f(i)\nprint(x)", 1),
        ("assert f(0)\ndef check(candidate):\n    assert candidate(1)", 2),
        ("import numpy as np\nnp.testing.assert_allclose(f(1), 2)", 1),
        ("try:\n    f(1)\n    raise RuntimeError\nexcept ValueError:\n    pass", 1),
    ],
)
def test_test_code_falls_into_cases(test: str, count: int) -> None:
    tests = cases.Tests(test, "f")
    assert tests.count == count == len(list(tests.cases()))


@pytest.mark.parametrize("test", ["", "x = 1", "def test():\n    assert f(1)"])
def test_test_code_that_asserts_nothing_is_broken(test: str) -> None:
    with pytest.raises(cases.TestCodeFault):
        cases.Tests(test, "f")


class Cell:
    """A forked process that serves calls over a socket pair, without any sandbox."""

    def __init__(self, source: str, entry_point: str = "f") -> None:
        mine, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            mine.close()
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            sys.stdout = sys.stderr = open(silent, "w")  # noqa: SIM115
            try:
                calls.main(theirs, codec.encode((b"first", "", source, entry_point)))
            finally:
                os._exit(9)
        theirs.close()
        mine.settimeout(20)
        self._file = mine.makefile("rwb")
        mine.close()

    def say(self, *frame: Any) -> None:
        body = codec.encode(frame)
        self._file.write(struct.pack("<I", len(body)) + body)
        self._file.flush()

    def hear(self) -> tuple[Any, ...] | None:
        head = self._file.read(4)
        return codec.decode(self._file.read(struct.unpack("<I", head)[0])) if head else None

    def end(self) -> int:
        self._file.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_driver_answers_each_request_once_and_leaves_cleanly() -> None:
    cell = Cell("def f(x, k=0):\n    print('noise')\n    if x == 3: raise KeyError('three')\n    return [x, k]")
    assert [cell.hear() for _ in range(3)] == [(kind, b"first") for kind in ("prepared", "parsed", "loaded")]
    cell.say("call", b"n1", (1,), {"k": 2}, False)
    assert cell.hear() == ("result", b"n1", [1, 2], None)
    cell.say("call", b"n2", (3,), {}, False)
    assert cell.hear() == ("raised", b"n2", "KeyError", "'three'", 3, "KeyError")
    cell.say("call", b"n3", ([7],), {}, True)
    assert cell.hear() == ("result", b"n3", [[7], 0], ([7],))
    cell.say("bye", b"")
    assert cell.hear() is None
    assert cell.end() == 0


@pytest.mark.parametrize(
    ("source", "kind"),
    [("def f(:", "refused"), ("x = 1\0", "refused"), ("(" * 9000, "refused"), ("x = 1", "missing"),
     ("1 / 0", "raised"), ("raise SystemExit", "exited"), ("raise KeyboardInterrupt", "raised")],
)  # fmt: skip
def test_a_program_that_can_t_be_loaded_says_why(source: str, kind: str) -> None:
    cell = Cell(source)
    assert cell.hear() == ("prepared", b"first")
    heard = cell.hear()
    if heard == ("parsed", b"first"):
        heard = cell.hear()
    assert heard is not None
    assert heard[:2] == (kind, b"first")
    assert cell.end() in (0, 1)


def test_an_honest_program_that_patches_what_the_driver_uses_is_answered() -> None:
    cell = Cell(
        "import os, builtins\nos.write = os.read = builtins.len = builtins.type = None\ndef f(x): return {'a': [x]}"
    )
    assert [cell.hear() for _ in range(3)] == [(kind, b"first") for kind in ("prepared", "parsed", "loaded")]
    cell.say("call", b"n", (1,), {}, False)
    assert cell.hear() == ("result", b"n", {"a": [1]}, None)
    assert cell.end() == 0
