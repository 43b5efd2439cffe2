"""Integrity of suites: finds test code that evaluates what a program returns, and so runs in the program's hands.

Test code that calls `eval` on a result, unpickles it or gives it to a parser that evaluates takes the program's text
for code: the program then judges itself, in whatever cell the tests are. Pure: reads names, runs nothing. It misses a
name that is hidden: suites are trusted, and want to be judged right.
"""

import ast

from areal_judge.judge.values import AssertSuite, Integrity, StdioSuite, Suite

_BUILTINS = frozenset({"eval", "exec", "compile", "__import__", "builtins", "__builtins__"})
_MODULES = frozenset({
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "code", "codeop", "runpy",
    "importlib",
})  # fmt: skip
_FUNCTIONS = frozenset({
    "sympify", "parse_expr", "parse_latex", "parse_mathematica", "unsafe_load", "full_load",
    "run_path", "run_module", "read_pickle",
})  # fmt: skip
_OF_MODULES = frozenset({
    ("sympy", "S"), ("yaml", "load"), ("numexpr", "evaluate"), ("pandas", "eval"), ("pd", "eval"),
})  # fmt: skip


def integrity_of(suite: Suite) -> Integrity:
    """How far a program is from what judges it, by this suite's own code."""
    if isinstance(suite, AssertSuite):
        evaluating = suite.integrity is Integrity.IN_PROCESS or evaluates(suite.test) or evaluates(suite.prelude)
        return Integrity.IN_PROCESS if evaluating else Integrity.SPLIT
    if isinstance(suite, StdioSuite) and evaluates(suite.checker.program):
        return Integrity.IN_PROCESS
    return Integrity.SPLIT


def evaluates(source: str) -> bool:
    """Whether Python source names what makes code of a text. False for what is no Python."""
    if not source.strip():
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(_makes_code(node) for node in ast.walk(tree))


def _makes_code(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name in _BUILTINS or name in _FUNCTIONS
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] in _MODULES for alias in names)
        case ast.ImportFrom(module=module, names=names):
            root = (module or "").partition(".")[0]
            if root in _MODULES or root == "builtins":
                return True
            return any(alias.name in _FUNCTIONS or (root, alias.name) in _OF_MODULES for alias in names)
        case ast.Attribute(value=ast.Name(id=base), attr=name):
            return name in _FUNCTIONS or (base, name) in _OF_MODULES
        case ast.Attribute(attr=name):
            return name in _FUNCTIONS
    return False
