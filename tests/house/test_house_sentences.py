"""Lint: sentences are for people. No code of ours decides by what one of them says; causes and reasons are enums."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = {
    "idle",
    "idle_reason",
    "message",
    "text",
    "sentence",
    "stalled",
    "waits_for",
    "doing",
    "detail",
    "said",
    "fix",
}
"""Fields that hold a sentence."""
UNCHANGING = {"lower", "strip", "lstrip", "rstrip", "casefold"}
READ = {
    "areal_judge/judge/stack.py": "what an attack printed in the sandbox",
    "areal_operator/kube/errors.py": "Kubernetes' words, where they enter",
    "areal_operator/operator/refusals.py": "Kubernetes' words, where they enter",
}
"""Modules that read what others wrote, and what that is."""


def sentence_of(node: ast.expr) -> str | None:
    """The field whose sentence an expression is; None for anything else. A local variable is no field."""
    match node:
        case ast.Attribute(attr=name) if name in SENTENCES:
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))) if name in SENTENCES:
            return name
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]) if name in SENTENCES:
            return name
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in UNCHANGING:
            return sentence_of(inner)
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return sentence_of(inner)
        case ast.BoolOp(values=values):
            return next((name for value in values if (name := sentence_of(value))), None)
    return None


def decisions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that ask what a sentence says, and its field. An empty one may be asked for: that is no word."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="startswith" | "endswith" | "find" | "index")):
                if name := sentence_of(value):
                    yield node.lineno, name
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
                if name := sentence_of(right):
                    yield node.lineno, name
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                for one, other in ((left, right), (right, left)):
                    worded = isinstance(other, ast.JoinedStr) or (
                        isinstance(other, ast.Constant) and isinstance(other.value, str) and bool(other.value)
                    )
                    if worded and (name := sentence_of(one)):
                        yield node.lineno, name


def test_no_code_decides_by_what_a_sentence_says() -> None:
    found = {}
    for top in ("services", "trainer"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = str(path.relative_to(ROOT / top))
            if lines := list(decisions(ast.parse(path.read_text()))):
                found[name] = lines
    assert {name: lines for name, lines in found.items() if name not in READ} == {}
    assert READ.keys() <= found.keys(), "these read no sentence any more"


def test_what_reads_a_sentence_is_found_and_what_makes_one_is_not() -> None:
    source = """
live.idle.startswith("the gate")
"quota" in found.get("message", "")
found["message"] == f"{pod}: gone"
(error.message or "").lower().endswith("full")
text = live.idle + "."
message == ""
live.idle == ""
text.startswith("{")
"""
    assert [line for line, _ in decisions(ast.parse(source))] == [2, 3, 4, 5]
