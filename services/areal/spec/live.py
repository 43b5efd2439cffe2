"""Live fields of a job: which may change while it goes on, and the reading of changes to them. Pure."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from areal.errors import ConfigError
from areal.spec.block import Mutability, blocks_in, fields_of
from areal.spec.job import JobSpec
from areal.yaml_file.document import parse_value


def live_fields() -> frozenset[str]:
    """Dotted paths, below `spec`, of every field that the operator takes over while a job runs."""
    return frozenset(_live(JobSpec, ""))


def _live(block: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in fields_of(block).items():
        inner = blocks_in(field.annotation)
        for one in inner:
            yield from _live(one, f"{prefix}{name}.")
        if not inner and field.json_schema_extra["cluster"] == Mutability.LIVE:
            yield f"{prefix}{name}"


def read_changes(changes: Sequence[str], allowed: Collection[str]) -> dict[str, Any]:
    """`field=value` texts as a mapping; raises ConfigError for a field that is not allowed. Values are YAML."""
    found: dict[str, Any] = {}
    for text in changes:
        path, equals, raw = text.partition("=")
        path = path.strip().removeprefix("spec.")
        if not equals:
            raise ConfigError(f"{text!r} is no change", fix="write field=value, for example algorithm.maxSteps=200")
        if path not in allowed:
            raise ConfigError(
                f"{path} can't change while a run goes on", fix=f"these can: {', '.join(sorted(allowed))}"
            )
        found[path] = parse_value(raw)
    return found


def nested(changes: dict[str, Any]) -> dict[str, Any]:
    """Dotted paths as mappings in mappings."""
    found: dict[str, Any] = {}
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = found
        for key in parents:
            place = place.setdefault(key, {})
        place[last] = value
    return found
