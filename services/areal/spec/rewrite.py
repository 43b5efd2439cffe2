"""Rewriting of an old job file into a new one: the author's lines and comments, with fields where they are now.

Moves whole lines of text. What comes out is read again and must be what `migration` says; where it isn't (anchors,
JSON, unusual layouts), the values are written out plainly, and comments are lost. Pure but for `rewrite_file`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from areal.errors import ConfigError
from areal.files import write_atomically
from areal.spec.migration import ADVANCED, FIXED_ROWS, OPTIMIZER, migrated_job, old_fields
from areal.yaml_file.document import parse_document

_STEP = 2  # columns of an indentation
_COMMENT = re.compile(r"(.*\S)( {2,})(#.*)")


class _UnusualError(Exception):
    """A layout whose lines can't be moved."""


@dataclass(frozen=True)
class NewForm:
    """A file in its new form. `moves` are the old fields with where each is now."""

    text: str
    moves: list[tuple[str, str]]
    comments_kept: bool


def rewrite(text: str, path: Path) -> NewForm:
    """The new form of a job file's text. Raises ConfigError for what is no job file, or says two things."""
    values = parse_document(text, path).values
    spec = values.get("spec")
    moves = list(old_fields(spec)) if isinstance(spec, dict) else []
    if not moves:
        return NewForm(text, [], True)
    wanted = migrated_job(values)
    try:
        made = _moved_lines(text)
        if parse_document(made, path).values == wanted:
            return NewForm(made, moves, True)
    except (_UnusualError, ConfigError, yaml.YAMLError):
        pass
    return NewForm(yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True, width=120), moves, False)


def rewrite_file(path: Path) -> NewForm:
    """Rewrite a file in place; where comments can't be kept, the old file stays beside it as `….old`."""
    if not path.is_file():
        raise ConfigError(f"{path} is no regular file", fix="Name the job's YAML file.")
    old = path.read_bytes()
    found = rewrite(old.decode(), path)
    if found.moves:
        if not found.comments_kept:
            write_atomically(path.with_name(f"{path.name}.old"), old)
        write_atomically(path, found.text.encode())
    return found


@dataclass(frozen=True)
class _Entry:
    """One field of a mapping: its lines with the comments above it, its name at column 0."""

    name: str
    lines: tuple[str, ...]
    flow: bool = False  # it was an entry between braces

    def deeper(self, columns: int) -> list[str]:
        return [f"{' ' * columns}{line}" if line else line for line in self.lines]


def _moved_lines(text: str) -> str:
    lines = text.splitlines()
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    (spec,) = [value for key, value in root.value if key.value == "spec"]
    _plain_block(root)
    _plain_block(spec)
    entries = _entries(spec, lines)
    head, column = _first_line_of(spec.value[0][0], lines), spec.start_mark.column
    tail = _end_of(spec, lines)
    nodes = {key.value: value for key, value in spec.value}
    made = _sections(entries, nodes, lines)
    body = [line for entry in made for line in entry.deeper(column)]
    return "\n".join([*lines[:head], *body, *lines[tail:]]) + "\n"


def _sections(entries: list[_Entry], nodes: dict[str, Any], lines: list[str]) -> list[_Entry]:
    """The fields of the new `spec`."""
    optimizer: list[_Entry] = []
    made: list[_Entry] = []
    name_lines: tuple[str, ...] = ()
    for entry in entries:
        node = nodes[entry.name]
        if entry.name == "training" and isinstance(node, yaml.ScalarNode):
            name_lines = _named(entry)
            continue
        if not isinstance(node, yaml.MappingNode):
            made += [entry] if entry.name not in FIXED_ROWS else []
            continue
        if entry.name in FIXED_ROWS:
            own = [each for each in _entries(node, lines) if each.name not in OPTIMIZER]
            optimizer += [each for each in _entries(node, lines) if each.name in OPTIMIZER]
            if entry.name == "distillation":
                own = [_renamed(each, "divergence") if each.name == "loss" else each for each in own]
            first = _Entry("name", name_lines, flow=node.flow_style)
            made.append(_section("training", _header(entry, node, lines), [first, *own]))
        elif entry.name == "algorithm":
            every = _entries(node, lines)
            optimizer += [each for each in every if each.name in OPTIMIZER]
            has_kl = any(each.name == "kl" for each in every)
            kept = [_kl(each) for each in every if each.name not in (*OPTIMIZER, *ADVANCED)
                    and not (each.name == "klCoefficient" and has_kl)]  # fmt: skip
            if advanced := [each for each in every if each.name in ADVANCED]:
                kept.append(_section("advanced", ("", "advanced:"), advanced))
            made.append(_section("algorithm", _header(entry, node, lines), kept))
        elif entry.name == "trainer" and any(key.value == "optimizer" for key, _ in node.value):
            kept = [each for each in _entries(node, lines) if each.name != "optimizer"]
            made += [_section("trainer", _header(entry, node, lines), kept)] if kept else []
            continue
        else:
            made.append(entry)
            continue
        if optimizer:
            made.append(_section("optimizer", ("", "optimizer:"), optimizer))
    return made


def _entries(mapping: Any, lines: list[str]) -> list[_Entry]:
    """The fields of a mapping as text. What is between them belongs to the one before, comments right above to the one
    below."""
    if mapping.flow_style:
        return [
            _Entry(key.value, (f"{_source(key, lines)}: {_source(value, lines)}",), flow=True)
            for key, value in mapping.value
        ]
    starts = [_first_line_of(key, lines) for key, _ in mapping.value]
    ends = [*starts[1:], _end_of(mapping, lines)]
    column = mapping.start_mark.column
    found = []
    for (key, _), start, end in zip(mapping.value, starts, ends, strict=True):
        if key.start_mark.column != column:
            raise _UnusualError
        found.append(_Entry(key.value, tuple(_cut(line, column) for line in lines[start:end])))
    return found


def _cut(line: str, column: int) -> str:
    """A line without the indentation of the mapping that it is in."""
    if line[:column].strip() and not line.lstrip().startswith("#"):
        raise _UnusualError
    return line[column:] if not line[:column].strip() else line.lstrip()


def _first_line_of(key: Any, lines: list[str]) -> int:
    """The first of the comments that stand right above a field, at its column."""
    line = key.start_mark.line
    while line > 0 and lines[line - 1].lstrip().startswith("#") and _indent(lines[line - 1]) == key.start_mark.column:
        line -= 1
    return int(line)


def _end_of(mapping: Any, lines: list[str]) -> int:
    """The line after a block mapping's last: comments below it at its column or deeper are still its own."""
    last = max(key.start_mark.line for key, _ in mapping.value)
    line = last + 1
    while line < len(lines) and (not lines[line].strip() or _indent(lines[line]) >= mapping.start_mark.column):
        line += 1
    while line > last + 1 and not lines[line - 1].strip():
        line -= 1
    return int(line)


def _section(name: str, header: tuple[str, ...], inner: list[_Entry]) -> _Entry:
    """A block with some fields: between braces where all of them were."""
    above, first = header[:-1], header[-1]
    if inner and all(each.flow for each in inner):
        words, _, comment = first.partition("  #")
        fields = ", ".join(line for each in inner for line in each.lines)
        line = f"{words.rstrip()} {{{fields}}}" + (f"  #{comment}" if comment else "")
        return _Entry(name, (*[text for text in above if text], line))
    right = _STEP if name == "advanced" else 0
    body = [_comment_back(line, right) for each in inner for line in each.deeper(_STEP)]
    return _Entry(name, (*[text for text in above if text], first, *body))


def _header(entry: _Entry, node: Any, lines: list[str]) -> tuple[str, ...]:
    """The comments above a block and its first line, under the name that the block has now."""
    name = "training" if entry.name in FIXED_ROWS else entry.name
    above = [line for line in entry.lines if line.startswith("#")]
    first = next(line for line in entry.lines if not line.startswith("#"))
    if node.flow_style:
        comment = lines[node.end_mark.line][node.end_mark.column :].strip()
        return (*above, f"{name}:" + (f"  {comment}" if comment else ""))
    return (*above, f"{name}:{first.partition(':')[2]}")


def _named(entry: _Entry) -> tuple[str, ...]:
    """`training: SFT` as the first field of the block."""
    return tuple(line if line.startswith("#") else f"name:{line.partition(':')[2]}" for line in entry.lines)


def _renamed(entry: _Entry, name: str) -> _Entry:
    above = [line for line in entry.lines if line.startswith("#")]
    first, *rest = entry.lines[len(above) :]
    line = _comment_back(f"{name}:{first.partition(':')[2]}", len(name) - len(entry.name))
    return _Entry(name, (*above, line, *rest), entry.flow)


def _kl(entry: _Entry) -> _Entry:
    """`klCoefficient: 0.1` as the block that it was short for."""
    if entry.name != "klCoefficient":
        return entry
    *above, line = entry.lines
    value = line.partition(":")[2].partition(" #")[0].strip()
    gap, mark, comment = line.partition("#")
    first = f"kl: {{coefficient: {value}}}"
    return _Entry("kl", (*above, f"{first.ljust(len(gap) - 1)} {mark}{comment}".rstrip()), entry.flow)


def _comment_back(line: str, columns: int) -> str:
    """A line that moved to the right, the comment at its end where it was, as far as there is room."""
    found = _COMMENT.fullmatch(line)
    if found is None:
        return line
    return f"{found[1]}{' ' * max(1, len(found[2]) - columns)}{found[3]}"


def _plain_block(mapping: Any) -> None:
    if not isinstance(mapping, yaml.MappingNode) or mapping.flow_style or not mapping.value:
        raise _UnusualError


def _source(node: Any, lines: list[str]) -> str:
    start, end = node.start_mark, node.end_mark
    if start.line == end.line:
        return str(lines[start.line][start.column : end.column])
    inside = [lines[start.line][start.column :], *lines[start.line + 1 : end.line], lines[end.line][: end.column]]
    if any("#" in line for line in inside):
        raise _UnusualError
    return " ".join(line.strip() for line in inside)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
