"""Suite validation: refuses a suite that could pass any program, fail every program, or run without a bound.

Pure: reads the suite, runs nothing. Test code is parsed, never executed.
"""

import ast
import keyword
import math
from collections.abc import Mapping
from typing import NoReturn

from areal.errors import DataError

from areal_judge.judge.checkers import NAMES as CHECKERS
from areal_judge.judge.tagged import TaggedError, to_tagged
from areal_judge.judge.values import AssertSuite, CallCase, CallSuite, Checker, StdioCase, StdioSuite, Suite
from areal_judge.sandbox.values import Limits

MAX_CASES = 20_000
MAX_SOURCE_CHARS = 4 << 20  # parsing takes some hundred times as much memory
_LEAST: Mapping[str, float] = {"memory_bytes": 16 << 20, "stderr_bytes": 0, "disk_bytes": 0, "inodes": 0}
_MOST: Mapping[str, float] = {
    "wall_s": 3600.0, "cpu_s": 3600.0, "memory_bytes": 1 << 40, "output_bytes": 1 << 30, "stderr_bytes": 1 << 30,
    "disk_bytes": 1 << 40, "inodes": 1 << 24, "processes": 1 << 15, "open_files": 1 << 20, "stack_bytes": 1 << 40,
}  # fmt: skip


def validate(suite: Suite, at: str = "suite") -> None:
    """Raises DataError, naming the place, when no program should be judged by this suite."""
    match suite:
        case StdioSuite():
            _cases(suite, at)
            _checker(suite.checker, f"{at}.checker")
        case CallSuite():
            _entry_point(suite.entry_point, f"{at}.entry_point")
            _cases(suite, at)
            _checker(suite.checker, f"{at}.checker")
            _python(suite.prelude, f"{at}.prelude")
        case AssertSuite():
            _entry_point(suite.entry_point, f"{at}.entry_point")
            _asserts(suite, f"{at}.test")
            _python(suite.prelude, f"{at}.prelude")
        case _:
            _refuse(at, f"a {type(suite).__name__} is no suite", "make a StdioSuite, CallSuite or AssertSuite")
    validate_limits(suite.limits, f"{at}.limits")


def _cases(suite: StdioSuite | CallSuite, at: str) -> None:
    if not suite.cases:
        _refuse(f"{at}.cases", "no cases: every program would pass", "add cases, or drop the row")
    if len(suite.cases) > MAX_CASES:
        _refuse(f"{at}.cases", f"{len(suite.cases)} cases are more than {MAX_CASES}", "keep the cases that matter")
    for index, case in enumerate(suite.cases):
        where = f"{at}.cases[{index}]"
        if type(case) is not (StdioCase if isinstance(suite, StdioSuite) else CallCase):
            _refuse(where, f"a {type(case).__name__} is no case of this suite", "use one kind of case in a suite")
        if isinstance(case, CallCase):
            _plain(case, where)
            continue
        if type(case.stdin) is not str:
            _refuse(f"{where}.stdin", "a text is due", "give the standard input as one string")
        if type(case.expected) is not str:
            _refuse(f"{where}.expected", "no expected output", "give it as one string, or drop the case")
        _encodable(case.stdin, f"{where}.stdin")
        _encodable(case.expected, f"{where}.expected")


def _encodable(text: str, at: str) -> None:
    """Half of a surrogate pair stands for no character; U+DC80 to U+DCFF stand for bytes that are no UTF-8."""
    if text.isascii():
        return
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        lone = f"U+{ord(text[error.start]):04X}"
        _refuse(at, f"a lone surrogate ({lone}) at character {error.start}", "mend the text: it is no Unicode")


def _plain(case: CallCase, where: str) -> None:
    if type(case.arguments) is not tuple:
        _refuse(f"{where}.arguments", "a tuple is due", "give the arguments in order")
    parts = {"arguments": list(case.arguments), "keywords": dict(case.keywords), "expected": case.expected}
    for name, value in parts.items():
        try:
            to_tagged(value)
        except TaggedError as error:
            _refuse(f"{where}.{name}{error.path}", error.message, "use builtin values: they are compared outside")
    if any(type(name) is not str or not name.isidentifier() for name in case.keywords):
        _refuse(f"{where}.keywords", "keys are parameters' names", "use identifiers")


def _entry_point(name: str, at: str) -> None:
    parts = name.split(".") if type(name) is str else []
    if not 1 <= len(parts) <= 2 or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        _refuse(at, f"{name!r} names no function", 'write a name like "add" or "Solution.add"')


def _checker(checker: Checker, at: str) -> None:
    if checker.name not in CHECKERS:
        _refuse(f"{at}.name", f"unknown checker {checker.name!r}", f"use one of {', '.join(CHECKERS)}")
    for name in ("absolute", "relative"):
        tolerance = getattr(checker, name)
        if type(tolerance) not in (int, float) or not math.isfinite(tolerance) or tolerance < 0:
            _refuse(f"{at}.{name}", f"{tolerance!r} is no tolerance", "use a finite number, 0 or more")
    if (checker.name == "custom") != bool(checker.program.strip()):
        _refuse(f"{at}.program", "a program goes with the custom checker, and only with it", "give both, or neither")
    _python(checker.program, f"{at}.program")


def validate_limits(limits: Limits, at: str) -> None:
    """Raises DataError, naming the place, for limits that no run can have."""
    for name, most in _MOST.items():
        value = getattr(limits, name)
        whole = name not in ("wall_s", "cpu_s")
        if type(value) is bool or not isinstance(value, int if whole else int | float) or not math.isfinite(value):
            _refuse(f"{at}.{name}", f"{value!r} is no limit", f"use a {'whole ' if whole else ''}number")
        least = _LEAST.get(name, 1 if whole else 1e-3)
        if name == "memory_bytes" and value < least:
            why = "no interpreter starts with less"
            _refuse(f"{at}.{name}", f"{value!r} is too little: {why}", f"use {least} (16 MiB) or more")
        if not least <= value <= most:
            _refuse(f"{at}.{name}", f"{value!r} is out of range", f"use something from {least:g} to {most:g}")


def _asserts(suite: AssertSuite, at: str) -> None:
    tree = _python(suite.test, at)
    if tree is None:
        _refuse(at, "no test code: every program would pass", "add asserts, or drop the row")
    if not any(isinstance(node, ast.Assert | ast.Raise) or _is_assertion(node) for node in ast.walk(tree)):
        _refuse(at, "the test code asserts nothing: every program would pass", "add asserts, or drop the row")


def _is_assertion(node: ast.AST) -> bool:
    """unittest's and numpy's: `self.assertEqual(…)`, `numpy.testing.assert_allclose(…)`."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name.startswith("assert")


def _python(source: str, at: str) -> ast.Module | None:
    """The parsed source; None when there is none. Raises DataError when it is no Python."""
    if type(source) is not str:
        _refuse(at, "a text is due", "give Python source")
    if not source.strip():
        return None
    return parsed_source(source, at, "mend the source")


def parsed_source(source: str, at: str, fix: str) -> ast.Module:
    """The syntax tree. Raises DataError naming the place and the line."""
    if len(source) > MAX_SOURCE_CHARS:
        _refuse(at, f"more than {MAX_SOURCE_CHARS >> 20} MiB of source", "keep the tests that matter")
    try:
        return ast.parse(source)
    except SyntaxError as error:
        _refuse(at, f"line {error.lineno} is no Python: {error.msg}", fix)
    except (ValueError, RecursionError, MemoryError) as error:
        _refuse(at, f"can't be parsed: {error or type(error).__name__}", fix)


def _refuse(at: str, message: str, fix: str) -> NoReturn:
    raise DataError(f"{at}: {message}", fix=fix)
