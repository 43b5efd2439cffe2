"""Flags of programs and suites, by the names in their source (`flags.yaml`). Counted and reported, never judged by.

A scan of names, not of meaning: comments and texts are skipped, what is left is looked up. It takes linear time on any
input and parses nothing, for the source is hostile and this is the judge's process. It sees an honest program that
inspects its own frames, too, and misses one that spells a name in pieces: what a program does is the sandbox's affair.
"""

import ast
import re
from collections.abc import Iterator

from areal.yaml_file.table import read_table

from areal_judge.judge.values import AssertSuite, Flag, Integrity, StdioSuite, Suite

MAX_SOURCE = 1 << 20  # characters looked at
_MAX_PATH = 300

# Every alternative that begins succeeds (a missing end is the end of what was read), so no input is read twice.
_TOKEN = re.compile(
    r"""(?P<skip>\#[^\n]*+"""
    r"""|[rbfuRBFU]{0,2}\"\"\"(?:[^\\"]|\\.|"(?!""))*+(?:\"\"\")?|[rbfuRBFU]{0,2}'''(?:[^\\']|\\.|'(?!''))*+(?:''')?)"""
    r"""|(?P<text>[rbfuRBFU]{0,2}(?:"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?))"""
    r"""|(?P<name>[A-Za-z_]\w*+(?:\s?\.\s?[A-Za-z_]\w*+)*+)""",
    re.DOTALL,
)
_NAMES = {kind: frozenset(names) for kind, names in read_table("areal_judge.judge", "flags.yaml").items()}
_FRAMES, _JUDGE, _EXITS, _SIGNALS, _SYSTEM = (
    _NAMES[kind] for kind in ("frames", "judge", "exits", "signals", "system")
)
_PARTS = _FRAMES | _JUDGE | _EXITS | _SYSTEM | {name.rpartition(".")[2] for name in _SIGNALS}  # most names have none
_TEST_FILES = re.compile(
    r"(?:^|[/\\])(?:tests?|expected|answers?|solutions?|grader?|judge|conftest|check(?:er)?)(?:_\w*)?\.(?:py|json|txt|out)$"
    r"|^/proc/|/tests?/",
    re.IGNORECASE,
)


def of_source(source: str, language: str) -> frozenset[Flag]:
    """The signs in a program's source; only Python is read."""
    if language != "python":
        return frozenset()
    words = {(match.lastgroup, match.group()) for match in _TOKEN.finditer(source[:MAX_SOURCE])}
    return frozenset(flag for kind, word in words for flag in _signs(kind, word))


def _signs(kind: str | None, word: str) -> Iterator[Flag]:
    if kind == "skip":
        return
    if kind == "text":
        if len(word) <= _MAX_PATH and _TEST_FILES.search(word.lstrip("rbfuRBFU").strip("'\"")):
            yield Flag.READS_TESTS
        return
    parts = [part.strip() for part in word.split(".")]
    if _PARTS.isdisjoint(parts):
        return
    if parts[0] in _JUDGE or not _FRAMES.isdisjoint(parts):
        yield Flag.READS_TESTS
    if not _EXITS.isdisjoint(parts):
        yield Flag.EXITED_EARLY
    if ".".join(parts[-2:]) in _SIGNALS or parts[-1] in _SIGNALS:
        yield Flag.CATCHES_SIGNALS
    if not _SYSTEM.isdisjoint(parts):
        yield Flag.SYSTEM_CALLS


# ---- Integrity of suites: finds test code that evaluates what a program returns, and so runs in the program's hands
# Test code that calls `eval` on a result, unpickles it or gives it to a parser that evaluates takes the program's text
# for code: the program then judges itself, in whatever cell the tests are. Pure: reads names, runs nothing. It misses a
# name that is hidden: suites are trusted, and want to be judged right.


_BUILTINS, _MODULES, _FUNCTIONS, _METHODS = (_NAMES[kind] for kind in ("builtins", "modules", "functions", "methods"))


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
            return any(alias.name in _FUNCTIONS or f"{root}.{alias.name}" in _METHODS for alias in names)
        case ast.Attribute(value=ast.Name(id=base), attr=name):
            return name in _FUNCTIONS or f"{base}.{name}" in _METHODS
        case ast.Attribute(attr=name):
            return name in _FUNCTIONS
    return False
