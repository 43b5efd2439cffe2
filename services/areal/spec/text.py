"""Text of a bounded length, and the forms that Kubernetes prescribes for names, labels and amounts.

Every text of the job file has a bound, because an API server estimates the cost of a rule from it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, StringConstraints

_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_ENV_NAME = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
_ABSOLUTE = r"^/[^ ]*$"
_MOUNT = r"^(/[.]?[-A-Za-z0-9_+=@][-A-Za-z0-9_.+=@]*)+$"  # neither . nor .. is a part of it
_AMOUNT = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"


@dataclass(frozen=True, eq=False)
class WireSchema:
    """Part of a type: how an API server is told about it, where that isn't what the type itself says."""

    schema: Mapping[str, Any]


def quantity_schema(pattern: str) -> dict[str, Any]:
    """A number, or text of a pattern."""
    kinds = [{"type": "integer"}, {"type": "string"}]
    return {"x-kubernetes-int-or-string": True, "anyOf": kinds, "maxLength": 32, "pattern": pattern}


LONGEST_PATH = 1024
LONGEST_WORD = 256

Name = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=_NAME)]  # The name of a Kubernetes object
AbsolutePath = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_PATH, pattern=_ABSOLUTE)]
Mount = Annotated[str, StringConstraints(min_length=2, max_length=LONGEST_WORD, pattern=_MOUNT)]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=316, pattern=_LABEL_KEY)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=_LABEL_VALUE)]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
EnvName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=_ENV_NAME)]
EnvValue = Annotated[str, StringConstraints(max_length=4096)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_WORD)]  # A column, a task, an argument's name
PathText = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_PATH)]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=1024)]  # One word of a command line


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    """JSON, and so a cluster, has no other numbers."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError(".inf and .nan are no values of JSON: write a number") from None
    return value


FiniteMapping = Annotated[dict[str, Any], AfterValidator(_finite)]

_NOT_NEGATIVE = {  # a pattern is for text only
    "rule": "!string(self).startsWith('-')",
    "message": "An amount isn't negative. Write a number from 0 on, or one with a unit: 500m, 16Gi.",
}


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Amount = Annotated[
    str,
    BeforeValidator(_as_text),
    StringConstraints(min_length=1, max_length=32, pattern=_AMOUNT),
    WireSchema(quantity_schema(_AMOUNT) | {"x-kubernetes-validations": [_NOT_NEGATIVE]}),
]
"""An amount of a resource as Kubernetes writes it: 2, 500m, 16Gi."""

MEANING = {
    _NAME: "a Kubernetes name: lower-case letters, digits, '-' and '.'",
    _LABEL_KEY: "a label's key, for example team or example.com/team",
    _LABEL_VALUE: "a label's value: letters, digits, '-', '_' and '.', at most 63",
    _ENV_NAME: "the name of an environment variable",
    _ABSOLUTE: "an absolute path without blanks",
    _MOUNT: "an absolute directory below /, of plain names and without a / at its end",
    _AMOUNT: "an amount as Kubernetes writes it: 2, 500m, 16Gi",
}
"""What a pattern asks for, in words."""
