"""A YAML file as plain values, with the line of every field.

Owns reading: one document, no field twice, the line where each was written. Reads events one by one with bounds on
depth and on the number of values, aliases counted as often as they are used, so that no file costs more than a second.
Knows nothing about jobs.
"""

import math
import os
import re
import stat
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

from yaml import events
from yaml.error import MarkedYAMLError, YAMLError
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.scanner import Scanner

from areal.errors import ConfigError

# ---- YAML scalar resolution: an unquoted scalar as kubectl and the API server read it
# Pure. PyYAML's own resolver follows YAML 1.1, which reads 1:40 as 100, a date as a date and 1e3 as text; a cluster
# reads the first two as text and the last as 1000. One spelling is refused: a number with a leading zero is octal to
# some readers and decimal to others.


Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **{form: True for word in ("y", "yes", "true", "on") for form in (word, word.capitalize(), word.upper())},
    **{form: False for word in ("n", "no", "false", "off") for form in (word, word.capitalize(), word.upper())},
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{f"{sign}{form}": math.inf for sign in ("", "+") for form in (".inf", ".Inf", ".INF")},
    **{f"-{form}": -math.inf for form in (".inf", ".Inf", ".INF")},
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_WHOLE_BELOW = 1e21  # whole floats below it travel as integers: JSON writes them without a fraction
_INT64 = range(-(1 << 63), 1 << 63)  # a cluster keeps larger integers as doubles
_DOUBLE_BITS = 1000  # of an integer that a double can hold
_LONGEST = 400  # characters of a number; a longer one is text


class AmbiguousNumberError(ValueError):
    """A number that two readers of YAML read differently."""


def plain(text: str) -> Scalar:
    """The value of an unquoted scalar; raises AmbiguousNumberError for a number with a leading zero."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or len(text) > _LONGEST:
        return text
    number = text if text[0] == "." else text.replace("_", "")
    if _LEADING_ZERO.fullmatch(number):
        raise AmbiguousNumberError(
            f"{text} is octal to some readers of YAML and decimal to others: write the number without leading zeros, "
            "or put it in quotes where text is meant"
        )
    if _INTEGER.fullmatch(number):
        whole = int(number, 0)
        return whole if whole in _INT64 or whole.bit_length() > _DOUBLE_BITS else _rounded(float(whole))
    if _FLOAT.fullmatch(number):
        value = float(number)
        if math.isinf(value):
            return text
        return _rounded(value)
    return text


def _rounded(value: float) -> int | float:
    """A double as JSON writes it, with as few digits as tell it apart."""
    return int(Decimal(repr(value))) if value.is_integer() and abs(value) < _WHOLE_BELOW else value


def tagged(tag: str, text: str) -> Scalar:
    """The value of a scalar with a tag such as !!int; raises ValueError when the text is none of that type."""
    if (kind := tag.removeprefix("tag:yaml.org,2002:")) == "str":
        return text
    found = plain(text)
    types: dict[str, tuple[type, ...]] = {
        "int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),),
    }  # fmt: skip
    if kind not in types:
        raise ValueError(f"the tag {tag} is not for job files")
    if not isinstance(found, types[kind]) or (isinstance(found, bool) and kind != "bool"):
        raise ValueError(f"{text!r} is no {kind}")
    return found


def key(value: Scalar) -> str:
    """A mapping's key as JSON writes it; raises ValueError for null."""
    if value is None:
        raise ValueError("a field needs a name")
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- A YAML file as plain values, with the line of every field


_MAX_BYTES = 256 << 10  # a job file has a few kilobytes
_MAX_DEPTH = 32
_MAX_VALUES = 10_000
DECIDE = "# decide:"
"""Begins a line with a question that a file leaves to its author."""

_PLAIN_TAGS = {None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
_DESCRIPTORS = (Path("/dev/fd"), Path("/proc/self/fd"))
_SCRIPTS = (".sh", ".py", ".toml")
_CONVERT = (
    "Name the job's YAML file; `areal convert` makes one of AReaL's, verl's, TRL's and OpenRLHF's files, and "
    "docs/migration.md has the fields of prime-rl, NeMo-RL and SkyRL."
)
_SHOWN = 80  # characters of a wrong value


@dataclass(frozen=True)
class Document:
    """A file's values; `lines` gives the line of each dotted path; `duplicates` are paths that were written twice.

    `undecided` has the lines that begin with `# decide:`, by their number.
    """

    path: Path
    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)
    duplicates: list[tuple[str, int, int]] = field(default_factory=list)  # path, first line, second line
    undecided: dict[int, str] = field(default_factory=dict)


def read_document(path: Path) -> Document:
    """Read a YAML (or JSON) file that holds one mapping; raises ConfigError naming the file and the line."""
    try:
        str(path.absolute()).encode()  # run directory, model and rows are named relative to it, in text
    except UnicodeEncodeError:
        raise ConfigError(f"{str(path.absolute())!a} is no UTF-8 text", fix="Rename the directory.") from None
    try:
        if path.is_dir():
            raise ConfigError(f"{path} is a directory, not a job file", fix="Name the job's YAML file.")
        if path.suffix in _SCRIPTS and path.is_file():
            raise ConfigError(f"{path} is a script or configuration of something else, no job file", fix=_CONVERT)
        with _regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ConfigError(
                f"{path} has more than {_MAX_BYTES >> 10} KiB: no job file is that large",
                fix="Name the job's YAML file.",
            )
        text = data.decode()
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path} (looked in {Path.cwd()})", fix="Check the path of the job file."
        ) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: this is no UTF-8 text: {error}", fix="Save the file as UTF-8.") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} can't be read: {reason}", fix="Check the path and the file's permissions.") from None
    return parse_document(text, path)


def _regular(path: Path) -> BinaryIO:
    """The file, open. A named pipe would keep its reader waiting for a writer, a device for ever: both are refused.

    The shell's own pipes (`/dev/stdin`, `/dev/fd/63`) have a writer.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    piped = stat.S_ISFIFO(mode) and (str(path) == "/dev/stdin" or path.parent in _DESCRIPTORS)
    if not stat.S_ISREG(mode) and not piped:
        os.close(descriptor)
        raise ConfigError(
            f"{path} is no regular file but a pipe, a socket or a device",
            fix="Write the job into a file, and name that.",
        )
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def parse_document(text: str, path: Path) -> Document:
    """The same for text; `path` is only named in errors."""
    document = Document(path, {})
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(DECIDE):
            document.undecided[number] = line.removeprefix(DECIDE).strip()
    try:
        values = _Composer(text, document).value()
    except _AnotherDocumentError as second:
        raise ConfigError(
            f"{path}:{second.line}: a second YAML document starts here",
            fix="Keep one job in a file, without another ---.",
        ) from None
    except _NothingError:
        raise ConfigError(f"{path} is empty", fix="Start from an example in docs/rljob.md.") from None
    except YAMLError as error:
        raise ConfigError(
            f"{path}{_place(error, text)}: this is no valid YAML: {_reason(error)}", fix=_hint(text, error)
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds no mapping", fix="Its first line is a field, apiVersion: areal.dev/v1alpha1 in a job."
        )
    document.values.update(values)
    return document


def parse_value(text: str) -> Any:
    """One YAML value, as an override gives it; raises ConfigError."""
    try:
        return _Composer(text, Document(Path(), {})).value()
    except _NothingError:
        return None
    except (YAMLError, _AnotherDocumentError) as error:
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
        raise ConfigError(f"{shown!r} is no YAML value: {_reason(error)}") from None


class _NothingError(Exception):
    """There is no document."""


class _AnotherDocumentError(Exception):
    """There is a second document."""

    def __init__(self, line: int) -> None:
        super().__init__("a second YAML document starts in it")
        self.line = line


class _EventParser(Reader, Scanner, Parser):
    """PyYAML's parser without its composer."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


@dataclass(frozen=True)
class _BuiltValue:
    """A value, with the number of values in it and how deep they are nested."""

    value: Any
    count: int = 1
    depth: int = 0


class _Composer:
    """Builds the one value of a text from its events."""

    def __init__(self, text: str, document: Document) -> None:
        self._text = text
        self._document = document
        self._anchors: dict[str, _BuiltValue] = {}
        self._count = 0
        self._events: Any = None  # what PyYAML parses has no types

    def value(self) -> Any:
        self._events = _EventParser(self._text)
        self._take()  # the stream's start
        if self._events.check_event(events.StreamEndEvent):
            raise _NothingError
        self._take()  # the document's start
        made = self._node("", 0)
        self._take()
        if not self._events.check_event(events.StreamEndEvent):
            raise _AnotherDocumentError(self._events.peek_event().start_mark.line + 1)
        return made.value

    def _take(self) -> Any:
        return self._events.get_event()

    def _node(self, path: str, depth: int) -> _BuiltValue:
        event = self._take()
        if depth > _MAX_DEPTH:
            raise _wrong(f"nested more than {_MAX_DEPTH} levels deep", event.start_mark)
        if isinstance(event, events.AliasEvent):
            return self._alias(event, depth)
        self._counted(1, event.start_mark)
        if isinstance(event, events.ScalarEvent):
            made = _BuiltValue(_scalar(event))
        else:
            if event.tag not in _PLAIN_TAGS:
                raise _wrong(f"the tag {event.tag} is not for job files", event.start_mark)
            composed = self._mapping if isinstance(event, events.MappingStartEvent) else self._sequence
            made = composed(path, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = made
        return made

    def _alias(self, event: Any, depth: int) -> _BuiltValue:
        if (made := self._anchors.get(event.anchor)) is None:
            raise _wrong(f"found undefined alias {event.anchor!r}, or one of what it is in", event.start_mark)
        if depth + made.depth > _MAX_DEPTH:
            raise _wrong(f"nested more than {_MAX_DEPTH} levels deep", event.start_mark)
        self._counted(made.count, event.start_mark)
        return _BuiltValue(_copy(made.value), made.count, made.depth)

    def _counted(self, more: int, mark: Any) -> None:
        self._count += more
        if self._count > _MAX_VALUES:
            raise _wrong(f"more than {_MAX_VALUES} values, each use of an alias counted", mark)

    def _mapping(self, path: str, depth: int) -> _BuiltValue:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        count, deepest = 1, 0
        while not self._events.check_event(events.MappingEndEvent):
            event = self._events.peek_event()
            line = event.start_mark.line + 1
            if not isinstance(event, events.ScalarEvent):
                raise _wrong("a field needs a name", event.start_mark)
            self._take()
            if event.value == "<<" and event.style is None:
                merged = _merge(self._node(path, depth + 1).value, event.start_mark) | merged
                continue
            try:
                name = key(_scalar(event))
            except ValueError as error:
                raise _wrong(str(error), event.start_mark) from None
            child = f"{path}.{name}" if path else name
            if name in own:
                self._document.duplicates.append((child, self._document.lines[child], line))
            self._document.lines[child] = line
            made = self._node(child, depth + 1)
            own[name] = made.value
            count, deepest = count + made.count, max(deepest, made.depth + 1)
        self._take()
        return _BuiltValue(merged | own, count, deepest)

    def _sequence(self, path: str, depth: int) -> _BuiltValue:
        items: list[Any] = []
        count, deepest = 1, 0
        while not self._events.check_event(events.SequenceEndEvent):
            child = f"{path}.{len(items)}"
            self._document.lines[child] = self._events.peek_event().start_mark.line + 1
            made = self._node(child, depth + 1)
            items.append(made.value)
            count, deepest = count + made.count, max(deepest, made.depth + 1)
        self._take()
        return _BuiltValue(items, count, deepest)


def _scalar(event: Any) -> Scalar:
    text: str = event.value
    try:
        text.encode()
        if event.tag is not None and event.tag != "!":
            return tagged(event.tag, text)
        return plain(text) if event.implicit[0] and event.tag is None else text
    except UnicodeEncodeError:
        raise _wrong("half of a surrogate pair is no character", event.start_mark) from None
    except ValueError as error:
        raise _wrong(str(error), event.start_mark) from None


def _merge(value: Any, mark: Any) -> dict[str, Any]:
    """The fields that `<<` brings: of one mapping, or of several, the first of which wins."""
    found: dict[str, Any] = {}
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict):
            raise _wrong("<< needs a mapping, or a list of mappings", mark)
        found = each | found
    return found


def _copy(value: Any) -> Any:
    """A value of its own for each use of an alias: overrides change values in place."""
    if isinstance(value, dict):
        return {name: _copy(inner) for name, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _wrong(problem: str, mark: Any) -> MarkedYAMLError:
    return MarkedYAMLError(problem=problem, problem_mark=mark)


def _place(error: YAMLError, text: str) -> str:
    if isinstance(error, ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f":{line}:{error.position - text.rfind(chr(10), 0, error.position)}"
    mark = (error.problem_mark or error.context_mark) if isinstance(error, MarkedYAMLError) else None
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _reason(error: Exception) -> str:
    if isinstance(error, ReaderError):
        return f"the character U+{int(error.character):04X} is not allowed in YAML"
    reason = (error.problem if isinstance(error, MarkedYAMLError) else None) or str(error)
    return " ".join(reason.split())


def _hint(text: str, error: YAMLError) -> str:
    if isinstance(error, ReaderError):
        return "Remove the character, or write it as an escape in double quotes."
    if "\t" in text:
        return "YAML is indented with spaces: replace the tabs."
    return "Check indentation, colons and quotes on and above that line."
