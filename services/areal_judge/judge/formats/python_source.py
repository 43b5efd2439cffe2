"""Static analysis of Python source by its syntax tree; nothing is run."""

import ast
import builtins

from areal_judge.judge.validation import parsed_source

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse(source: str, at: str) -> ast.Module:
    """The tree. Raises DataError naming the column and the line."""
    return parsed_source(source, f"row.{at}", "mend the row, or drop it")


def without(source: str, name: str, at: str) -> str:
    """The source without the top-level function `name`: imports and helpers; empty when nothing else is there."""
    tree = parse(source, at)
    lines = source.splitlines(keepends=True)
    left = 0
    for node in tree.body:
        if isinstance(node, _Function) and node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            last = node.end_lineno or first
            lines[first - 1 : last] = [""] * (last - first + 1)
        else:
            left += 1
    return "".join(lines).strip("\n") + "\n" if left else ""


def defined(tree: ast.Module) -> set[str]:
    """Names that the module binds at its top level."""
    return functions(tree) | classes(tree) | imported(tree) | _assigned(tree)


def functions(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, _Function)}


def classes(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def imported(tree: ast.AST) -> set[str]:
    """Names that imports bind, anywhere; "*" for a star."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return names


def _assigned(tree: ast.Module) -> set[str]:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store | ast.Del)}


def called(tree: ast.AST) -> set[str]:
    """Plain names that are called: of `f(g(1)).h()`, f and g."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def read(tree: ast.AST) -> set[str]:
    """Plain names that are read."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def foreign(tree: ast.Module) -> set[str]:
    """Names that the module reads but binds nowhere, and that are no builtins."""
    bound = imported(tree) | _assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, _Function | ast.ClassDef | ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return {name for name in read(tree) - bound if not hasattr(builtins, name)}


def needs_numpy(*trees: ast.AST) -> bool:
    """Whether any of them imports numpy."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(module.split(".")[0] == "numpy" for module in modules)


def imports(tree: ast.Module) -> str:
    """The module's own top-level import statements, as source."""
    found = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return "".join(f"{line}\n" for line in found)
