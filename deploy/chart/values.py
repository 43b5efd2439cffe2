"""Reads values.yaml with its comments.

Owns the grammar of these comments. A comment that stands directly above a key describes it; lines in it that begin with
`@` speak to the generator:

    @section NAME     a heading of the pages; the next keys stand below it
    @schema {…}       JSON schema keywords, merged into what the default says
    @type NAME        the value has this named shape, and its keys are described where the shape is
    @define NAME      this mapping is the named shape: others have the same keys, all optional
    @map NAME         any key may stand here, and each value has this named shape

Every value needs a comment, and a default that says nothing about its type (`[]`, `{}`, null) needs `@type`,
`@schema` or `@map`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_WORDS = {"section", "schema", "type", "define", "map"}


class CommentError(ValueError):
    """values.yaml breaks the grammar of its comments."""


@dataclass(frozen=True)
class Value:
    """One key of values.yaml."""

    path: tuple[str, ...]
    default: Any
    text: str
    says: dict[str, str]  # the `@` lines: word → rest
    section: str = ""
    children: tuple[Value, ...] = field(default=())

    @property
    def name(self) -> str:
        """As `--set` writes it."""
        return ".".join(part.replace(".", "\\.") for part in self.path)

    @property
    def shape(self) -> str:
        """The named shape that describes its keys elsewhere, or ""."""
        return self.says.get("type", "")

    def walk(self) -> Iterator[Value]:
        """Itself and all below it that are described one by one."""
        yield self
        for child in self.children:
            yield from child.walk()


def read(path: Path) -> list[Value]:
    """The top keys of a values file. Raises CommentError with the line that is wrong."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    section = ""
    top: list[Value] = []
    previous_end = 0
    for key, value in node.value:
        for line in lines[previous_end : key.start_mark.line]:
            if match := re.match(r"# @section (.+)", line):
                section = match[1]
        previous_end = key.start_mark.line
        top.append(_value((), key, value, lines, section))
    return top


def _value(path: tuple[str, ...], key: yaml.Node, node: yaml.Node, lines: list[str], section: str) -> Value:
    where = (*path, str(key.value))
    text, says = _comment(key.start_mark.line, lines)
    default = yaml.safe_load(yaml.serialize(node))
    children: tuple[Value, ...] = ()
    if isinstance(node, yaml.MappingNode) and node.value and not says.keys() & {"type"}:
        children = tuple(_value(where, k, v, lines, section) for k, v in node.value)
    name = f"line {key.start_mark.line + 1}: {'.'.join(where)}"
    if not text and not children:
        raise CommentError(f"{name} has no comment above it")
    if default in ([], {}, None) and not says.keys() & {"type", "schema", "map"}:
        raise CommentError(f"{name}: its default says nothing about its type; add @type or @schema")
    return Value(where, default, text, says, section, children)


def _comment(line: int, lines: list[str]) -> tuple[str, dict[str, str]]:
    """The words and the `@` lines of the comment that ends above `line`."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    words: list[str] = []
    says: dict[str, str] = {}
    for number in range(first, line):
        content = lines[number].lstrip().removeprefix("#").strip()
        if match := re.match(r"@(\w+)\s*(.*)", content):
            if match[1] not in _WORDS:
                raise CommentError(f"line {number + 1}: @{match[1]} is none of {', '.join(sorted(_WORDS))}")
            says[match[1]] = match[2]
        else:
            words.append(content)
    return " ".join(words).strip(), says
