"""Docstrings begin with the term for what a module is."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = sorted(
    path
    for tree in ("services/areal", "trainer/areal_trainer")
    for path in (ROOT / tree).rglob("*.py")
    if "v1" not in path.parts
)
RIDDLES = {"What", "Who", "Whether", "How", "Goes", "Whoever", "Where", "When", "Which"}


def test_a_modules_docstring_begins_with_the_term_for_it():
    first = {path: ast.get_docstring(ast.parse(path.read_text())) for path in PRODUCT}
    wrong = {str(path.relative_to(ROOT)): text for path, text in first.items() if text and text.split()[0] in RIDDLES}
    assert wrong == {}
