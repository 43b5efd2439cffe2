"""Names that a recipe defines, found without running it.

User code is run by workers, the custom-reward pool and the trainer only; planning reads its top level as syntax.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from areal.errors import DataError
from areal.spec.locate import refuse_pipes


def defines(recipe: Path, name: str) -> bool:
    """Whether the file binds `name` at its top level. Raises DataError when it is no Python."""
    refuse_pipes(recipe)
    try:
        source = recipe.read_bytes()
    except OSError as error:
        raise DataError(f"{recipe} can't be read: {error.strerror}", fix="Check recipe.file.") from error
    return defines_in(source, name, str(recipe))


def has_hooks(*files: Path | None) -> bool:
    """Whether one of a job's files replaces what the trainer computes, by a function that can be tried alone."""
    names = ("compute_advantages", "compute_loss")
    return any(defines(file, name) for file in files if file is not None for name in names)


def defines_in(source: str | bytes, name: str, shown: str) -> bool:
    """The same for the text of a recipe; `shown` is what people call it."""
    try:
        tree = ast.parse(source, filename=shown)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise DataError(f"{shown}{line}: the recipe is no valid Python: {error}", fix="Correct the recipe.") from None
    return name in set(_bound(tree.body))


def _bound(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.split(".")[0] for alias in names)
            case ast.Assign(targets=targets):
                yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                yield name
            case ast.If(body=then, orelse=otherwise):
                yield from _bound(then)
                yield from _bound(otherwise)
            case ast.Try(body=tried, handlers=handlers, orelse=otherwise):
                yield from _bound([*tried, *otherwise])
                for handler in handlers:
                    yield from _bound(handler.body)
            case _:
                continue
