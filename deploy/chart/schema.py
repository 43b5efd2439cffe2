"""The JSON schema of the chart's values, which refuses every key that values.yaml doesn't know. Pure.

Draft 7 without neighbours of `$ref`: old and new Helm read it alike.
"""

from __future__ import annotations

from typing import Any

import yaml

from deploy.chart.shapes import SHAPES, Schema, alert_overrides
from deploy.chart.values import CommentError, Value


def schema(values: list[Value], alerts: list[str]) -> Schema:
    """The whole schema; `alerts` are the names of the chart's alerts."""
    shapes = {**SHAPES, "alertOverrides": alert_overrides(alerts)}
    defined = {found.says["define"]: found for top in values for found in top.walk() if "define" in found.says}
    shapes.update({name: {} for name in defined})  # names first: shapes refer to one another
    shapes.update({name: _mapping(value, shapes) for name, value in defined.items()})
    properties = {value.path[-1]: _schema(value, shapes) for value in values}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the areal chart",
        "description": "Generated from values.yaml.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "definitions": dict(sorted(shapes.items())),
    }


def _schema(value: Value, shapes: dict[str, Schema]) -> Schema:
    if name := (value.shape or value.says.get("define")):
        return _reference(value, name, shapes)
    if name := value.says.get("map"):
        return _described(value, {"type": "object", "additionalProperties": _reference(value, name, shapes)})
    if value.children:
        return _described(value, _mapping(value, shapes))
    return _described(value, {**_from_default(value.default), **yaml.safe_load(value.says.get("schema", "{}"))})


def _mapping(value: Value, shapes: dict[str, Schema]) -> Schema:
    properties = {child.path[-1]: _schema(child, shapes) for child in value.children}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _reference(value: Value, name: str, shapes: dict[str, Schema]) -> Schema:
    if name not in shapes:
        raise CommentError(f"{value.name}: there is no shape {name}; there are {', '.join(sorted(shapes))}")
    return {"$ref": f"#/definitions/{name}"}


def _described(value: Value, made: Schema) -> Schema:
    return {"description": value.text, **made} if value.text else made


def _from_default(default: Any) -> Schema:
    match default:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case _:
            return {"type": "object"}
