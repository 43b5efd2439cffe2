"""Server-side apply: query and body of the request, and what a refusal says of other field managers.

Owns the encoding. The body is JSON sent as YAML, so it holds characters as they are: YAML knows no surrogate pairs,
which is how JSON in ASCII writes what lies beyond U+FFFF. What YAML folds as a line break or does not print is escaped.
"""

import json
import re
from dataclasses import dataclass

from areal_operator.kube.errors import ApiError
from areal_operator.kube.resources import Json

APPLY = "application/apply-patch+yaml"
_ESCAPED_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
_OWNER = re.compile(r'conflict with "([^"]*)"')


def apply_query(manager: str, *, force: bool, dry_run: bool = False) -> dict[str, str]:
    """The query: `manager` owns exactly the fields of the object. `force` takes fields over from other managers."""
    query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
    return query | ({"dryRun": "All"} if dry_run else {})


def apply_body(obj: Json) -> bytes:
    """The object as the request's body."""
    text = json.dumps(obj, ensure_ascii=False)
    return _ESCAPED_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


@dataclass(frozen=True)
class Conflict:
    """A field that another manager set to another value."""

    field: str  # spec.generation.replicas
    manager: str


def conflicts(error: ApiError) -> tuple[Conflict, ...]:
    """The fields that an apply without force would take over; none for an error of another kind."""
    found = []
    for cause in error.details.get("causes") or ():
        if cause.get("reason") == "FieldManagerConflict":
            owner = _OWNER.search(cause.get("message", ""))
            found.append(Conflict(cause.get("field", "").lstrip("."), owner[1] if owner else "another manager"))
    return tuple(found)
