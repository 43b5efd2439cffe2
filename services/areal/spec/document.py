"""A YAML file as plain values, with the line of every field.

Owns reading: one document, no field twice, the line where each was written. Knows nothing about jobs.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from areal.errors import ConfigError

_MAX_BYTES = 1 << 20  # the API server's limit for an object is about as large
_MAX_DEPTH = 32
_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True)
class Document:
    """A file's values; `lines` gives the line of each dotted path; `duplicates` are paths that were written twice."""

    path: Path
    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)
    duplicates: list[tuple[str, int, int]] = field(default_factory=list)  # path, first line, second line


def read_document(path: Path) -> Document:
    """Read a YAML (or JSON) file that holds one mapping; raises ConfigError naming the file and the line."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise ConfigError(f"{path} is a directory, not a job file", fix="Name the job's YAML file.")
        if size > _MAX_BYTES:
            raise ConfigError(f"{path} has {size} bytes: no job file is that large", fix="Name the job's YAML file.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path} (looked in {Path.cwd()})", fix="Check the path of the job file."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text: {error}", fix="Save the file as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}", fix="Check the file's permissions.") from error
    return parse_document(text, path)


def parse_document(text: str, path: Path) -> Document:
    """The same for text; `path` is only named in errors."""
    loader = yaml.SafeLoader(text)
    try:
        if not loader.check_node():
            raise ConfigError(f"{path} is empty", fix="Start from an example in docs/rljob.md.")
        root = loader.get_node()
        if loader.check_node():
            second = loader.get_mark().line + 1
            raise ConfigError(
                f"{path}:{second}: a second YAML document starts here",
                fix="Keep one job in a file, without another ---.",
            )
        document = Document(path, {})
        values = _value(loader, root, "", document, 0)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_place(error)}: this is no valid YAML: {_reason(error)}", fix=_hint(text)) from None
    finally:
        loader.dispose()
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no mapping", fix="Start the file with apiVersion: areal.dev/v1alpha1.")
    document.values.update(values)
    return document


def parse_value(text: str) -> Any:
    """One YAML value, as an override gives it; raises ConfigError."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r} is no YAML value: {_reason(error)}") from None


def _value(loader: yaml.SafeLoader, node: Any, path: str, document: Document, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise yaml.MarkedYAMLError(problem="nested too deep, or an alias of itself", problem_mark=node.start_mark)
    if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
        raise yaml.MarkedYAMLError(problem=f"the tag {node.tag} is not for job files", problem_mark=node.start_mark)
    if isinstance(node, yaml.MappingNode):
        own_keys = {id(key) for key, _ in node.value}
        loader.flatten_mapping(node)  # `<<`: merged fields come first, so that own fields win
        seen: set[str] = set()
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable) or key is None:
                raise yaml.MarkedYAMLError(problem="a field needs a name", problem_mark=key_node.start_mark)
            name = str(key).lower() if isinstance(key, bool) else str(key)
            child = f"{path}.{name}" if path else name
            line = key_node.start_mark.line + 1
            if id(key_node) in own_keys:
                if name in seen:
                    document.duplicates.append((child, document.lines[child], line))
                seen.add(name)
            document.lines[child] = line
            values[name] = _value(loader, value_node, child, document, depth + 1)
        return values
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            document.lines[f"{path}.{index}"] = item.start_mark.line + 1
            items.append(_value(loader, item, f"{path}.{index}", document, depth + 1))
        return items
    return loader.construct_object(node, deep=True)


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _reason(error: yaml.YAMLError) -> str:
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return " ".join(str(reason).split())


def _hint(text: str) -> str:
    if "\t" in text:
        return "YAML is indented with spaces: replace the tabs."
    return "Check indentation, colons and quotes on and above that line."
