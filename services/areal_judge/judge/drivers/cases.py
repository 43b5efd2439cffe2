"""Trusted test code, cut into cases, inside a cell.

A case is a statement at the top of the code that asserts, together with what stands before it. Code that defines
`check` and doesn't call it gets one case more: `check(candidate)`.
"""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from areal_judge.judge.drivers.wire import describe, line_of

FILE, PRELUDE = "<test>", "<prelude>"
_ENDINGS = (StopIteration, StopAsyncIteration, GeneratorExit)
PASSED, FAILED, PROGRAM, BROKEN = "passed", "failed", "program", "broken"
_CHECK = "check"
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)


class TestCodeFault(Exception):
    """The test code itself is at fault."""


class UncarriedError(BaseException):
    """A test's next arguments can't be carried, after the program has answered: they may be made of its answer."""


class _Foreign(BaseException):
    """What the program raised, where it can't be made again here."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


class ProgramError(_Foreign, Exception):
    """The program raised an exception."""


class ProgramExit(_Foreign):
    """The program raised what no `except Exception` catches."""


class Tests:
    """Test code, parsed and then bound to what it tests."""

    def __init__(self, test: str, entry_point: str) -> None:
        """Raises SyntaxError, and Broken for code that asserts nothing."""
        self._entry_point = entry_point
        self._tree = ast.parse(test, FILE)
        self._segments, rest = _segments(self._tree.body)
        self._check: list[ast.stmt] | None = None  # what comes before check(candidate)
        defines = any(isinstance(node, ast.FunctionDef) and node.name == _CHECK for node in self._tree.body)
        if defines and not any(_calls_check(node) for node in self._tree.body):
            self._check = rest
        elif self._segments:
            self._segments[-1] += rest
        else:
            raise TestCodeFault("the test code asserts nothing")
        self.module = types.ModuleType("tests")
        self._bound, self._imported = _names(self._tree)
        self._candidate: Any = None

    @property
    def count(self) -> int:
        return len(self._segments) + (self._check is not None)

    def prepare(self, prelude: str) -> None:
        """Runs the prelude."""
        sys.modules["tests"] = self.module
        bound, imported = _names(ast.parse(prelude, PRELUDE))
        self._bound |= bound
        self._imported |= imported
        exec(compile(prelude, PRELUDE, "exec", dont_inherit=True), self.module.__dict__)

    def bind(self, candidate: Any, names: dict[str, Any] | None = None) -> None:
        """Binds `names`, `candidate` and the entry point's own name."""
        space = self.module.__dict__
        space.update(names or {})
        owner, _, method = self._entry_point.rpartition(".")
        if not owner:
            space[self._entry_point] = candidate
        elif names is None:
            space[owner] = type(owner, (), {method: staticmethod(candidate)})
        space["candidate"] = self._candidate = candidate

    def cases(self) -> Iterator[Callable[[], None]]:
        """What runs each case; to be called in order."""
        for segment in self._segments:
            yield lambda nodes=segment: self._execute(nodes)  # type: ignore[misc]
        if self._check is not None:
            yield lambda: self._run_check(self._check or [])

    def discards_results(self) -> bool:
        """Whether the code calls the program for what it does to its arguments."""
        name = self._entry_point.rpartition(".")[2]
        return any(_name_of_call(node) in ("candidate", name) for node in ast.walk(self._tree))

    def lacks(self, error: BaseException) -> bool:
        """Whether the code asks for a name that nothing in it binds, or imports a module that isn't there.

        That is so whatever the program answers. A name that is bound on some ways only may depend on an answer, and
        what is raised elsewhere is in a text that the program returned and the test evaluates.
        """
        if _file_of(error) not in (FILE, PRELUDE):
            return False
        if isinstance(error, ImportError):
            return error.name in self._imported
        return isinstance(error, NameError) and error.name is not None and error.name not in self._bound

    def _execute(self, nodes: list[ast.stmt]) -> None:
        exec(compile(ast.Module(nodes, []), FILE, "exec", dont_inherit=True), self.module.__dict__)

    def _run_check(self, before: list[ast.stmt]) -> None:
        self._execute(before)
        self.module.__dict__[_CHECK](self._candidate)


def verdict_of(error: BaseException, calls: int, tests: Tests) -> str:
    """Whose fault an exception in test code is, when the program did not raise it.

    After a call it is the program's, unless it is at fault in the test code whatever the call returned.
    """
    if isinstance(error, AssertionError):
        return FAILED
    return BROKEN if calls == 0 or isinstance(error, TestCodeFault) or tests.lacks(error) else FAILED


def exception_of(name: str, message: str, family: str) -> BaseException:
    """The exception that a program raised, as far as its caller could have told: its name, and what catches it.

    One that ends an iteration is an error, as it is in a generator: `all(map(candidate, …))` would be true of nothing.
    """
    kind = getattr(builtins, family, None)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return ProgramError(name, message)
    try:
        if not issubclass(kind, _ENDINGS):
            made: type[BaseException] = kind if name == family else type(name, (kind,), {})
            return made(message)
    except (TypeError, ValueError):  # UnicodeDecodeError wants five arguments; not every text can name a class
        pass
    return ProgramError(name, message) if issubclass(kind, Exception) else ProgramExit(name, message)


def _file_of(error: BaseException) -> str:
    """Where an exception was raised."""
    trace, name = error.__traceback__, ""
    while trace is not None:
        name, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return name


def run_cases(
    tests: Tests, judged: Callable[[BaseException], str], tell: Callable[..., None], *, run_all: bool
) -> None:
    """Runs the cases in order, and tells (index, verdict, name, message, line) of each; up to the first that fails."""
    for index, case in enumerate(tests.cases()):
        verdict, name, message, line = PASSED, "", "", None
        try:
            case()
        except BaseException as error:
            name, message = (error.name, error.message) if isinstance(error, _Foreign) else describe(error)
            verdict, line = judged(error), line_of(error, FILE)
        tell(index, verdict, name, message, line)
        if verdict != PASSED and not run_all:
            return


def _names(tree: ast.Module) -> tuple[set[str], set[str | None]]:
    """Names that code binds on any way through it, and modules that its statements import."""
    bound: set[str] = set()
    imported: set[str | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, _NAMED) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for module in modules:
                parts = module.split(".")
                imported |= {".".join(parts[: count + 1]) for count in range(len(parts))}
    return bound, imported


def _segments(body: list[ast.stmt]) -> tuple[list[list[ast.stmt]], list[ast.stmt]]:
    """Statements up to each one that asserts, and what is left."""
    segments: list[list[ast.stmt]] = []
    waiting: list[ast.stmt] = []
    for node in body:
        waiting.append(node)
        if _asserts(node) or _calls_check(node):
            segments.append(waiting)
            waiting = []
    return segments, waiting


def _asserts(node: ast.AST) -> bool:
    """Whether a statement asserts something when it runs, other than in what it merely defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
        return False
    if isinstance(node, ast.Assert | ast.Raise) or _name_of_call(node).startswith("assert"):
        return True
    return any(_asserts(child) for child in ast.iter_child_nodes(node))


def _calls_check(node: ast.AST) -> bool:
    return _name_of_call(node) == _CHECK


def _name_of_call(node: ast.AST) -> str:
    """Of a statement that is a call: the last part of what it calls."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return ""
    called = node.value.func
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
