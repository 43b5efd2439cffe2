"""Syntax trees of the project's modules, for the tests that read code."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def modules(*trees: str) -> list[Path]:
    """The hand-written modules below directories of the checkout, sorted; generated ones lie in `v1`."""
    return sorted(path for tree in trees for path in (ROOT / tree).rglob("*.py") if "v1" not in path.parts)


def nodes(trees: Iterable[ast.AST]) -> list[ast.AST]:
    """All nodes of these trees, in no order that means anything: several times faster than `ast.walk`."""
    found = list(trees)
    for node in found:  # grows while it is read
        for value in node.__dict__.values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [inner for inner in value if isinstance(inner, ast.AST)]
    return found
