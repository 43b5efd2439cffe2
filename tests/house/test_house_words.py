"""Docstrings begin with the term for what a module is, and the names in their backticks exist."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sources import ROOT, modules, parsed

RIDDLES = {"What", "Who", "Whether", "How", "Goes", "Whoever", "Where", "When", "Which"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ELSEWHERE = {  # names in docstrings that are not this tree's, and whose they are
    "NotFound": "Kubernetes",
    "score_answer": "reasoning_gym",
    "v00000043": "an example",
}


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: parsed(path) for path in modules("services", "trainer/areal_trainer")}


def test_a_modules_docstring_begins_with_the_term_for_it(trees):
    first = {path: ast.get_docstring(tree) for path, tree in trees.items()}
    wrong = {str(path.relative_to(ROOT)): text for path, text in first.items() if text and text.split()[0] in RIDDLES}
    assert wrong == {}


def docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    """Of a module, class or function, and of all inside it that stand directly in a body."""
    body = getattr(node, "body", ())
    if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        yield node.body[0].value  # type: ignore[attr-defined]
    for inner in body if isinstance(body, list) else ():
        yield from docstrings(inner)


def test_names_in_backticks_of_docstrings_exist(trees):
    known = {*dir(builtins), *sys.stdlib_module_names, *ELSEWHERE}
    for path in (*(ROOT / "protos").rglob("*.proto"), *(ROOT / "services").rglob("*.lua")):
        known.update(re.findall(r"\w+", path.read_text()), (path.stem, path.suffix[1:]))
    quoted: set[tuple[Path, str]] = set()
    for path, tree in trees.items():
        lines = path.read_text().splitlines()
        for text in docstrings(tree):
            quoted.update((path, name) for name in re.findall(r"`([^\W\d][\w.]*)(?:\(\))?`", text.value))
            lines[text.lineno - 1 : text.end_lineno] = [""] * (text.end_lineno - text.lineno + 1)
        known.update(path.with_suffix("").parts, re.findall(r"\w+", "\n".join(lines)))
    unknown = [f"{path.relative_to(ROOT)}: {name}" for path, name in quoted if not known.issuperset(name.split("."))]
    assert sorted(unknown) == []


def test_the_glossary_has_twenty_words_that_the_code_uses(trees):
    page = (ROOT / "docs" / "architecture.md").read_text()
    words = re.findall(r"^\| \*\*(\w+)\*\*", page.partition("\n## Words\n")[2].partition("\n## ")[0], re.M)
    assert words[0] == "floor", "the rule of the whole controller"
    assert 10 < len(words) == len(set(words)) <= 20
    used = {word.lower() for path in trees for word in re.findall(r"[^\W\d_]+", path.read_text())}
    assert [word for word in words if word.lower() not in used] == []
