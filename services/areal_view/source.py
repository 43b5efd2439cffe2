"""Source transfer: Python functions and classes of a notebook or a module, written as a recipe for other processes.

Owns which objects travel, and how: functions and classes of one's own as their text, what an installed package has by
an import, plain values as literals. Whatever can't is refused by its name. Nothing is pickled, and nothing is called.
"""

import ast
import inspect
import linecache
import math
import re
import site
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from areal.errors import ConfigError

_HEAD = "from __future__ import annotations"  # so that what only types name needn't travel
_MOST_LITERAL = 256 << 10  # characters of a value that travels within the source
_DEEPEST = 20  # levels of a value
_LAMBDA = "<lambda>"
_OURS = ("areal", "areal_trainer", "areal_view", "areal_judge")
_INSTEAD = "make it inside the function, write a plain value instead, or keep all of it in a file: recipe.file"


def recipe_text(wanted: Mapping[str, Callable[..., Any] | type]) -> str:
    """A Python file that defines each of `wanted` under its name.

    Raises ConfigError that names what can't travel, and why.
    """
    text = _RecipeText()
    for name, value in wanted.items():
        text.add(name, value, f"{name}=")
    return text.whole()


class _RecipeText:
    """Grows by one definition at a time, what it needs before it."""

    def __init__(self) -> None:
        self._defined: dict[str, Any] = {}
        self._imports: dict[str, None] = {_HEAD: None}
        self._parts: list[str] = []

    def whole(self) -> str:
        return "\n\n\n".join(("\n".join(self._imports), *self._parts)) + "\n"

    def add(self, name: str, value: Any, user: str) -> None:
        """Define `name`; `user` is what needs it, for people."""
        if name in self._defined:
            if self._defined[name] is not value and _literal(value) != (_literal(self._defined[name]) or ""):
                raise _refused(user, name, "another thing that it needs has the same name", "rename one of the two")
            return
        self._defined[name] = value
        if isinstance(value, ModuleType):
            if not _is_installed(value):
                why = f"it is a module of your own ({value.__file__})"
                raise _refused(user, name, why, f"from {name} import what it uses")
            self._imports[_as(f"import {value.__name__}", value.__name__, name)] = None
        elif (place := _installed(value)) is not None:
            self._imports[_as(f"from {place[0]} import {place[1]}", place[1], name)] = None
        elif isinstance(value, type) or isinstance(inspect.unwrap(value) if callable(value) else None, FunctionType):
            self._add_code(name, value, user)
        elif isinstance(value, re.Pattern):
            self.add("re", re, user)
            self._parts.append(f"{name} = re.compile({value.pattern!r}, {int(value.flags)})")
        elif (literal := _literal(value)) is None:
            kind = f"an object of {type(value).__module__}.{type(value).__qualname__}"
            what = f"a method of {type(value.__self__).__name__}" if inspect.ismethod(value) else kind
            raise _refused(user, name, f"it is {what}", _INSTEAD)
        elif len(literal) > _MOST_LITERAL:
            raise _refused(user, name, f"it takes {len(literal):,} characters", "put it into a column of the rows")
        else:
            self._parts.append(f"{name} = {literal}")

    def _add_code(self, name: str, value: Any, user: str) -> None:
        source, scope = _source(value, name, user), _scope(value)
        own = name if value.__name__ == _LAMBDA else inspect.unwrap(value).__name__
        for other in sorted(_names(source, user) & scope.keys()):
            if not other.startswith("__"):
                self.add(other, scope[other], own)
                self._import_inner(other, scope[other], source)
        self._parts.append(source if own == name else f"{source}\n\n\n{name} = {own}")

    def _import_inner(self, name: str, value: Any, source: str) -> None:
        """Submodules that a text names by their package, which need an import of their own."""
        if isinstance(value, ModuleType) and name == value.__name__:
            dotted = re.findall(rf"\b(?={re.escape(name)}\.)[\w.]+", source)
            inner = {one.rsplit(".", cut)[0] for one in dotted for cut in range(one.count("."))}
            self._imports |= {f"import {one}": None for one in sorted(inner & sys.modules.keys())}


def _as(text: str, there: str, name: str) -> str:
    return text if there == name else f"{text} as {name}"


def _names(source: str, user: str) -> set[str]:
    """Names that a text reads and doesn't define."""
    try:
        tables = [symtable.symtable(f"{_HEAD}\n{source}", "recipe", "exec")]
    except SyntaxError as error:
        raise _refused(user, user, f"its source alone is no Python ({error.msg})", _INSTEAD) from None
    top, found = tables[0], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        symbols = (one for one in table.get_symbols() if one.is_referenced() and (table is top or one.is_global()))
        found |= {one.get_name() for one in symbols}
    return found - {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}


def _scope(value: Any) -> Mapping[str, Any]:
    """What the names of a function or class mean: those around it, then those of its module."""
    functions = (
        [each for each in vars(value).values() if isinstance(each, FunctionType)] if isinstance(value, type) else []
    )
    found: dict[str, Any] = dict(vars(sys.modules[value.__module__])) if value.__module__ in sys.modules else {}
    for function in functions or [inspect.unwrap(value)]:
        if isinstance(function, FunctionType):
            found |= {**function.__globals__, **dict(_enclosed(function))}
    return found


def _enclosed(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue


def _source(value: Any, name: str, user: str) -> str:
    """The text of a function or class, at the margin. Raises ConfigError for what has none of its own."""
    try:
        found = _source_of_class(value) if isinstance(value, type) else inspect.getsource(inspect.unwrap(value))
        text = textwrap.dedent(found).strip()
        statement = ast.parse(text).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        statement = None
    match statement:
        case ast.Assign(targets=[ast.Name(id=there)], value=ast.Lambda()) if there == name:
            return text
        case ast.FunctionDef(name=there) | ast.AsyncFunctionDef(name=there) | ast.ClassDef(name=there):
            if there == inspect.unwrap(value).__name__:
                return text
    what = "it is a lambda" if getattr(value, "__name__", "") == _LAMBDA else "its source can't be read"
    raise _refused(user, name, what, "write it with `def`, in a file or in a cell of a notebook")


def _source_of_class(value: type) -> str:
    """Also of a class in a notebook, whose module is no file: by the text that holds one of its methods."""
    for method in vars(value).values():
        code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
        lines = linecache.getlines(code.co_filename) if code is not None else []
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.name == value.__name__:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if code is not None and first <= code.co_firstlineno <= (node.end_lineno or 0):
                    return "".join(lines[first - 1 : node.end_lineno])
    return inspect.getsource(value)


def _installed(value: Any) -> tuple[str, str] | None:
    """Module and name by which something is imported from an installed package."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    found = sys.modules.get(module) if isinstance(module, str) else None
    if found is None or not isinstance(name, str) or not _is_installed(found):
        return None
    return (module, name) if getattr(found, name, None) is value and isinstance(module, str) else None


def _is_installed(module: ModuleType) -> bool:
    """Whether every Python of this environment can import it; a file of one's own can't be, from elsewhere."""
    if module.__name__.partition(".")[0] in _OURS:
        return True
    if module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    roots = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    roots -= {sysconfig.get_path("data"), sysconfig.get_path("scripts")}
    return file is None or any(Path(file).is_relative_to(root) for root in roots)


def _literal(value: Any, depth: int = 0) -> str | None:
    """A plain value as Python text; None for any other."""
    if value is None or type(value) in (bool, int, str, bytes):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if depth > _DEEPEST:
        return None
    if type(value) is dict:
        pairs = [(_literal(key, depth + 1), _literal(one, depth + 1)) for key, one in value.items()]
        whole = all(key is not None and one is not None for key, one in pairs)
        return "{" + ", ".join(f"{key}: {one}" for key, one in pairs) + "}" if whole else None
    if type(value) not in (list, tuple, set, frozenset):
        return None
    inner = [_literal(one, depth + 1) for one in value]
    if any(one is None for one in inner):
        return None
    listed = f"[{', '.join(map(str, inner))}]"
    return listed if type(value) is list else f"{type(value).__name__}({listed})"


def _refused(user: str, name: str, why: str, fix: str) -> ConfigError:
    whose = name if user.rstrip("=") == name else f"{name}, which {user.rstrip('=')} needs,"
    return ConfigError(f"{whose} can't travel to the run's processes: {why}", fix=fix)
