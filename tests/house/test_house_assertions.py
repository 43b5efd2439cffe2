"""Lint of the tests themselves: a test function that can't fail on a result proves nothing."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from support.sources import nodes

TESTS = Path(__file__).resolve().parents[1]
HELPERS = {"eventually", "becomes", "run_state_machine_as_test", "wait_for"}
"""Calls from other modules that raise when what they wait or look for isn't so."""
VERDICTS = {"raises", "fail", "warns"}  # of pytest

Function = ast.FunctionDef | ast.AsyncFunctionDef


def without_assertions(source: str) -> list[str]:
    """Names of a module's test functions that contain no assertion and call nothing that has one. Pure."""
    tree = ast.parse(source)
    functions = {node.name: node for node in nodes([tree]) if isinstance(node, Function)}
    found = [one for one in _collected(tree) if one.name.startswith("test")]
    return [one.name for one in found if not _asserts(one, functions, set())]


def _collected(tree: ast.Module) -> list[Function]:
    """What pytest collects: functions of the module and of its classes, none that stand in other functions."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return [node for body in (tree, *classes) for node in body.body if isinstance(node, Function)]


def _asserts(function: ast.AST, functions: Mapping[str, Function], seen: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        if name in VERDICTS or name.startswith("assert_") or {called, name} & HELPERS:
            return True
        if name in functions and name not in seen and _asserts(functions[name], functions, seen | {name}):
            return True
    return False


def test_every_test_asserts_on_something() -> None:
    modules = sorted(TESTS.rglob("test_*.py"))
    empty = {str(path.relative_to(TESTS)): without_assertions(path.read_text()) for path in modules}
    assert {path: names for path, names in empty.items() if names} == {}
    assert len(modules) > 200, "the tests have other names now"


def test_a_test_without_an_assertion_is_found_and_one_with_a_helpers_is_not() -> None:
    source = """
def check(value): assert value
def test_nothing(): check_not(1)
def test_helped(): check(1)
def test_raising():
    with pytest.raises(ValueError): int("x")
class TestAll:
    def test_inside(self): print(1)
def make():
    def test(): pass
"""
    assert without_assertions(source) == ["test_nothing", "test_inside"]
