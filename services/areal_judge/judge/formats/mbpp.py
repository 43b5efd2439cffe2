"""MBPP, its sanitised form and MBPP+: {test_list, test_setup_code | test_imports, challenge_test_list, code}.

The function under test is the one that the asserts call. Tests that use more of the program than that (a class, a
second function) can't be split from it and are judged in its process, which the result says.
"""

import ast
import builtins

from areal_judge.judge.formats import python_source
from areal_judge.judge.formats.fields import Row, has, refuse, text, texts
from areal_judge.judge.values import AssertSuite, Integrity, Suite


def claims(row: Row) -> bool:
    return "test_list" in row and not has(row, "base_input")


def suite(row: Row) -> Suite:
    setup = "\n".join([*texts(row, "test_imports"), text(row, "test_setup_code", "")]).replace("\r\n", "\n")
    asserts = [line for name in ("test_list", "challenge_test_list") for line in texts(row, name) if line.strip()]
    if not asserts:
        refuse("test_list", "no asserts: every program would pass", "add asserts, or drop the row")
    body = text(row, "test", "") or "\n".join(asserts)  # MBPP+ has a whole script with more cases
    return assert_suite(row, setup, body, "test_list")


def assert_suite(row: Row, setup: str, asserts: str, at: str) -> Suite:
    """Asserts with what they need before them."""
    tree = python_source.parse(asserts, at)
    before = python_source.parse(setup, "test_setup_code")
    entry_point = text(row, "entry_point", "") or _entry_point(row, tree, before, at)
    whole = python_source.parse(f"{setup}\n{asserts}", at)
    others = python_source.foreign(whole) - {entry_point}
    in_process = bool(others) or bool(python_source.classes(before))
    return AssertSuite(
        f"{setup}\n{asserts}\n".lstrip("\n"),
        entry_point,
        prelude=python_source.imports(before),
        integrity=Integrity.IN_PROCESS if in_process else Integrity.SPLIT,
        needs_numpy=python_source.needs_numpy(whole),
    )


def _entry_point(row: Row, asserts: ast.Module, setup: ast.Module, at: str) -> str:
    """The function that the asserts call: of the reference's when there is one, else the only unknown name."""
    known = python_source.defined(setup) | python_source.defined(asserts)
    names = {name for name in python_source.called(asserts) - known if not hasattr(builtins, name)}
    if has(row, "code"):
        reference = python_source.parse(text(row, "code").replace("\r\n", "\n"), "code")
        shadowing = python_source.called(asserts) & python_source.functions(reference)  # a solution may be called `sum`
        names = (names | shadowing) & python_source.functions(reference)
    if len(names) > 1 and len(everywhere := _in_every_assert(asserts, names)) == 1:
        names = everywhere
    if len(names) != 1:
        found = f"several: {', '.join(sorted(names))}" if names else "none"
        refuse(at, f"which function do the asserts test? ({found})", "name it in a column 'entry_point'")
    return names.pop()


def _in_every_assert(tree: ast.Module, names: set[str]) -> set[str]:
    for node in tree.body:
        if isinstance(node, ast.Assert):
            names = names & python_source.called(node)
    return names
