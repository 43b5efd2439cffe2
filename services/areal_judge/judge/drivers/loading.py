"""Loads a program inside a cell, and finds what is to be called.

The program becomes a module of its own name; its `if __name__ == "__main__"` part does not run. The prelude (imports
and helpers of the data set) runs in a namespace of its own and is reachable like builtins are: the program finds its
names, and none of them can ever be taken for the program's own. What is called must be bound by the program's source.
"""

from __future__ import annotations

import ast
import builtins
import sys
import types
from collections.abc import Callable
from typing import Any

PROGRAM = "program"
FILE = "<program>"
_CONTAINER = "Solution"
_missing = object()


class NoEntryPointError(Exception):
    """The program binds no such function."""


def run_prelude(source: str, entry_point: str) -> dict[str, Any]:
    """The public names that a prelude binds, without the one that the program has to bind."""
    if not source.strip():
        return {}
    module = types.ModuleType("prelude")
    sys.modules["prelude"] = module  # dataclasses and pickling look their module up
    exec(compile(source, "<prelude>", "exec", dont_inherit=True), module.__dict__)
    hidden = {"__builtins__", "__name__", "__doc__", "__package__", "__loader__", "__spec__", entry_point.split(".")[0]}
    return {name: value for name, value in module.__dict__.items() if name not in hidden}


class ParsedProgram:
    """A program, parsed; `run` executes it."""

    def __init__(self, source: str, fallback: dict[str, Any]) -> None:
        """Raises SyntaxError, ValueError, RecursionError or MemoryError for a source that is no Python."""
        tree = ast.parse(source, FILE)
        self._code = compile(tree, FILE, "exec", dont_inherit=True)
        self._bound = _names_bound(tree)
        self.module = types.ModuleType(PROGRAM)
        self.module.__dict__["__builtins__"] = {**builtins.__dict__, **fallback} if fallback else builtins

    def run(self) -> None:
        sys.modules[PROGRAM] = self.module
        exec(self._code, self.module.__dict__)

    def entry(self, name: str) -> Callable[[], Callable[..., Any]]:
        """What gives the callable for one call: a method gets a fresh object each time.

        "f" is a function, or a method of the program's class Solution; "Class.method" is a method.
        """
        owner, _, method = name.rpartition(".")
        if not owner and not self._binds(name) and self._binds(_CONTAINER):
            owner = _CONTAINER
        if not owner:
            if not self._binds(name):
                raise NoEntryPointError(f"the program defines no {name!r}")
            function = self.module.__dict__[name]
            return lambda: function
        if not self._binds(owner) or getattr(self.module.__dict__[owner], method, _missing) is _missing:
            raise NoEntryPointError(f"the program defines no {name!r}")
        made = self.module.__dict__[owner]
        return lambda: getattr(made(), method)

    def _binds(self, name: str) -> bool:
        """Whether the program's own source gives the name its value: a star import of somebody else's does not."""
        value = self.module.__dict__.get(name, _missing)
        if value is _missing:
            return False
        return name in self._bound or getattr(value, "__module__", None) == PROGRAM


def _names_bound(tree: ast.Module) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return frozenset(names)
