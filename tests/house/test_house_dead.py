"""Dead code: every name that the product defines is used by the product, not by its tests alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.sources import ROOT, modules, nodes, parsed

PRODUCT = ("services", "trainer")
CALLERS = ("bench", "examples", "tools/pages")  # tests are no callers
PLAIN = {
    "property",
    "classmethod",
    "staticmethod",
    "dataclass",
    "cached_property",
    "contextmanager",
    "override",
    "cache",
}
"""Decorators that call nothing by themselves; a function under any other one is registered somewhere."""

KEPT = {
    "as_markdown": "tables of docs/ that tests compare with the code",
    "COMPARED": "the table of model families that docs/models.md shows",
    "POINTS": "where a publication can be killed: its tests go through all of them",
    "X32_BIT": "a number of the kernel's that the tests of the filter name",
    "CERTIFICATES": "objects of cert-manager are sent by their kind, which this constant makes known",
    "UNK": "a place in the small tokenizer's list of special tokens",
    "input_len": "AReaL's workflows read it of an answer",
    "output_len": "the same",
    "output_logprobs": "the same",
    "output_versions": "the same",
    "new_with_stop_and_pad_token_ids": "AReaL's workflows call it of their sampling",
    "infra_errors": "whose fault a run's end was: the sandbox's tests count by it",
}


def definitions(tree: ast.Module, classes: set[str]) -> Iterator[str]:
    """Names of functions, classes, constants, fields of dataclasses and attributes that a module defines.

    A method counts where every base of its class is in `classes`: a library calls what overrides its own.
    """
    makers = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and makes_rule(node)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and not calls_one_of(node.value, makers):
            yield from assigned(node)
    for node in nodes([tree]):
        if isinstance(node, ast.ClassDef):
            if not registered(node):
                yield node.name
            ours = all(ast.unparse(base).partition("[")[0] in classes for base in node.bases)
            data = any(called(one).startswith("dataclass") for one in node.decorator_list)
            for inner in node.body:
                if data and isinstance(inner, ast.AnnAssign):
                    yield from assigned(inner)
                elif ours and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not registered(inner):
                    yield inner.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr  # of others it may be a library's setting
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not registered(node):
            yield node.name


def assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]


def makes_rule(function: ast.FunctionDef) -> bool:
    """Whether what it returns is registered by being there: `rules_in` finds the rules of a module."""
    return function.returns is not None and ast.unparse(function.returns) == "Rule"


def calls_one_of(value: ast.expr | None, names: set[str]) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in names


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def called(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).rpartition(".")[2]


def registered(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(called(one) not in PLAIN for one in node.decorator_list)


def uses(tree: ast.Module) -> Iterator[str]:
    """Names that a module reads, and the words of its strings, by which getattr and files of settings name things."""
    found = nodes([tree])
    documents = {id(node.value) for node in found if isinstance(node, ast.Expr)}
    for node in found:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield from re.findall(r"\w+", node.value)


def wire_fields() -> set[str]:
    """Words of the protos: that each field has a reader is another test's."""
    return {word for path in (ROOT / "protos").rglob("*.proto") for word in re.findall(r"\w+", path.read_text())}


def template_words() -> set[str]:
    """Words of the page's templates, which name fields of the values that they show."""
    templates = (ROOT / "services/areal_view/pages/templates").glob("*.html")
    return {word for path in templates for word in re.findall(r"\w+", path.read_text())}


def unused(product: list[ast.Module], callers: list[ast.Module]) -> set[str]:
    classes = {node.name for node in nodes(product) if isinstance(node, ast.ClassDef)}
    known = {*classes, "Protocol", "Generic"}
    defined = {name for tree in product for name in definitions(tree, known) if not name.startswith("__")}
    return defined - {name for tree in callers for name in uses(tree)}


def test_every_name_of_the_product_is_used_by_the_product():
    product, callers = ([parsed(path) for path in modules(*trees)] for trees in (PRODUCT, CALLERS))
    dead = unused(product, [*product, *callers]) - wire_fields() - template_words()
    assert sorted(dead - KEPT.keys()) == []


def test_a_name_that_only_a_test_uses_is_found():
    module = ast.parse('''
"""Names dead_function in its docstring."""
LIMIT = DEAD = 1
@dataclass
class Point:
    x: int
    dead_field: int = 0
    def far(self): self.seen = self.x > LIMIT
    def dead_method(self): return Point(1, dead_field=2)
@app.get("/")
def route(): return Point(2).far()
def dead_function(): pass
class Handler(Base):
    def on_message(self): Handler()
''')
    assert unused([module], [module]) == {"DEAD", "dead_field", "seen", "dead_method", "dead_function"}
