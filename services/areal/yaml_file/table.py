"""Data table: a YAML file that lies beside the modules of its package, trusted and read once, as plain values."""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times as fast, where PyYAML was built with it


@cache
def read_table(package: str, name: str) -> Any:
    """The values of `name`, a file of the package."""
    return yaml.load(resources.files(package).joinpath(name).read_bytes(), _LOADER)


def flat(values: list[Any]) -> tuple[Any, ...]:
    """A list whose lists are parts of it: how a table names a part once and uses it in several places."""
    return tuple(one for value in values for one in (value if isinstance(value, list) else [value]))


def tuple_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the fields of a frozen dataclass: its lists are flat tuples."""
    return {name: flat(value) if isinstance(value, list) else value for name, value in row.items()}
