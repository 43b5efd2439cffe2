"""Named shapes of values that are Kubernetes' own, or the same in several places. Pure data.

Where the chart prints a value into a field of Kubernetes' API, the shape is as strict as that field's keys; pods' deep
fields (affinity, volumes) stay open, for the API server knows them better.
"""

from __future__ import annotations

from typing import Any

from areal.spec.runtime import Egress, RuntimeRoles

Schema = dict[str, Any]

ROLES = tuple(field.alias or name for name, field in RuntimeRoles.model_fields.items())
"""The fields of a runtime's `roles`."""


def _object(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**made, "required": list(required)} if required else made


_TEXT: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1}
_QUANTITY: Schema = {
    "type": ["string", "integer", "number"],
    "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
}
_QUANTITIES: Schema = {"type": "object", "additionalProperties": {"$ref": "#/definitions/quantity"}}

SHAPES: dict[str, Schema] = {
    "quantity": _QUANTITY,
    "stringMap": {"type": "object", "additionalProperties": _TEXT},
    "object": {"type": "object"},
    "objects": {"type": "array", "items": {"type": "object"}},
    "localReferences": {"type": "array", "items": _object({"name": _NAME}, ("name",))},
    "resources": _object({"requests": _QUANTITIES, "limits": _QUANTITIES, "claims": {"type": "array"}}),
    "env": {
        "type": "array",
        "items": _object({"name": _NAME, "value": _TEXT, "valueFrom": {"type": "object"}}, ("name",)),
    },
    "tolerations": {
        "type": "array",
        "items": _object(
            {
                "key": _TEXT,
                "operator": {"type": "string", "enum": ["Exists", "Equal", "Lt", "Gt"]},
                "value": _TEXT,
                "effect": {"type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
                "tolerationSeconds": {"type": "integer"},
            }
        ),
    },
    "egress": _object(
        {
            role: {"type": "string", "enum": ["Job", "Open"]}
            for role in (field.alias or name for name, field in Egress.model_fields.items())
        }
    ),
    "allow": _object(
        {
            "secretLabels": {"$ref": "#/definitions/stringMap"},
            "volumeKinds": {"type": "array", "items": {"type": "string", "enum": ["pvc", "configMap", "secret"]}},
            **{
                name: {"type": "array", "items": _TEXT}
                for name in ("mountPrefixes", "nodeSelectorKeys", "tolerationKeys")
            },
        }
    ),
    "devices": _object(
        {
            "name": _NAME,
            "perPod": {"type": "integer", "minimum": 1, "maximum": 1024},
            "deviceClass": _NAME,
            "selectors": {"type": "array", "items": _NAME},
        }
    ),
    "roles": _object({role: {"$ref": "#/definitions/role"} for role in ROLES}),
    "priorityClass": _object(
        {
            "value": {"type": "integer", "minimum": -2147483648, "maximum": 1000000000},
            "description": _TEXT,
            "preemptionPolicy": {"type": "string", "enum": ["PreemptLowerPriority", "Never"]},
            "globalDefault": {"type": "boolean"},
        },
        ("value",),
    ),
}


def alert_overrides(alerts: list[str]) -> Schema:
    """The shape of changes to alerts, which knows the alerts there are."""
    change = _object(
        {
            "enabled": {"type": "boolean"},
            "for": {"type": "string", "pattern": r"^[0-9]+(s|m|h|d)$"},
            "severity": {"type": "string", "enum": ["info", "warning", "critical"]},
            "labels": {"$ref": "#/definitions/stringMap"},
        }
    )
    return _object(dict.fromkeys(alerts, change))
