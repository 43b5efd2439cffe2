"""Overrides of a job file on the command line: `algorithm.maxSteps=20`.

A path starts below `spec`, or at apiVersion, kind, metadata or spec itself. The value is YAML.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from areal.errors import ConfigError
from areal.spec.block import block_for, fields_of
from areal.spec.job import JobSpec, RLJob
from areal.spec.migration import moved
from areal.spec.problems import Problem, shortened, unknown_field
from areal.yaml_file.document import parse_value


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, str], list[Problem]]:
    """Set each `path=value` in `values`; returns where each dotted path comes from, and what is wrong."""
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for text in overrides:
        where = f"override {shortened(text)}"
        path, equals, raw = text.partition("=")
        if not equals or not path.strip():
            problems.append(Problem("", "an override is written field=value, for example algorithm.maxSteps=20", where))
            continue
        keys = path.strip().split(".")
        if keys[0] not in fields_of(RLJob):
            keys = ["spec", *keys]
        try:
            value = parse_value(raw)
        except ConfigError as error:
            problems.append(Problem(".".join(keys), error.message, where))
            continue
        if keys[0] == "spec" and (said := moved(".".join(keys[1:]), value)) is not None:
            problems.append(Problem(".".join(keys), said, where))
            continue
        if wrong := _wrong(keys, values):
            problems.append(Problem(*wrong, where))
            continue
        _set(values, keys, value)
        origins[".".join(keys)] = where
    return origins, problems


def _wrong(keys: Sequence[str], values: Any) -> tuple[str, str] | None:
    """Which part of a path names no field, and why; None when all do. Free-form fields take any path."""
    block: type[BaseModel] | None = RLJob
    spec = values.get("spec") if isinstance(values, dict) else None
    for depth, key in enumerate(keys):
        if block is None:
            return None
        fields = fields_of(block)
        if key not in fields:
            return ".".join(keys[: depth + 1]), _unknown(keys[: depth + 1], block, spec)
        annotation = fields[key].annotation
        values = values.get(key) if isinstance(values, dict) else None
        block = block_for(annotation, values)
        last = depth == len(keys) - 1
        if block is None and not last and "dict" not in str(annotation):
            return ".".join(keys), f"{'.'.join(keys[: depth + 1])} has no fields of its own"
    return None


def _unknown(keys: Sequence[str], block: type[BaseModel], spec: Any) -> str:
    message = unknown_field(keys[-1], block)
    if len(keys) == 2 and block is JobSpec:  # a field named without its block: maxSteps=20
        given = spec if isinstance(spec, dict) else {}
        holders = [
            f"{name}.{keys[-1]}"
            for name, field in fields_of(JobSpec).items()
            if (inner := block_for(field.annotation, None)) is not None
            and keys[-1] in fields_of(inner)
            and (name in given or name not in ("algorithm", "training"))
        ]
        if holders:
            return f"unknown field; did you mean {' or '.join(holders)}?"
    return message


def _set(values: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = values.get(key)
        if not isinstance(inner, dict):
            inner = {}
            values[key] = inner
        values = inner
    values[keys[-1]] = value
