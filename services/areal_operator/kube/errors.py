"""Typed errors of the API server."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from areal.errors import InfraError

from areal_operator.kube.resources import Json


class ApiError(InfraError):
    """The API server refused a request, or nobody answered it (`status` 0).

    `reason` is Kubernetes' own word (`NotFound`, `Conflict`, `Invalid`); `details` its `Status.details`, `{}` if none.
    """

    def __init__(self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.details: dict[str, Any] = dict(details or {})

    @property
    def retry_after_s(self) -> float | None:
        """Seconds of the server's Retry-After, where it has one."""
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if seconds else None


class UnreachableError(ApiError):
    """No answer came: the connection failed or broke, or the deadline passed. The request may have been carried out."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


class NotFoundError(ApiError):
    """404: the object, or the resource itself, does not exist."""


class ConflictError(ApiError):
    """The object is not as the request presumes: its version, its uid, or its being there."""


class AlreadyExistsError(ConflictError):
    """409 to a create: an object of this name is there."""


class GoneError(ApiError):
    """410: the resourceVersion or the continue token is older than what the server keeps."""


class InvalidError(ApiError):
    """400 or 422: the object itself is refused, repeating is useless. The server's message names the fields."""


class ForbiddenError(ApiError):
    """401 or 403: RBAC, admission or quota says no."""


class BusyError(ApiError):
    """429 or 503 to the end of all retries: the server asks for patience."""


_TYPES: dict[int, type[ApiError]] = {
    HTTPStatus.BAD_REQUEST: InvalidError,
    HTTPStatus.UNAUTHORIZED: ForbiddenError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: GoneError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidError,
    HTTPStatus.TOO_MANY_REQUESTS: BusyError,
    HTTPStatus.SERVICE_UNAVAILABLE: BusyError,
}

# How a server-side apply is refused for a field that a built-in type does not have, or for an entry given twice: as an
# internal error, though the object is at fault.
_NOT_OF_THE_SCHEMA = "failed to create typed patch object"


def error_of(status: int, body: Mapping[str, Any], *, what: str) -> ApiError:
    """The error of an HTTP status and the `Status` object (or nothing) that came with it. `what` names the request."""
    reason = str(body.get("reason") or f"HTTP{status}")
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and str(body.get("message")).startswith(_NOT_OF_THE_SCHEMA):
        status, reason = HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid"
    kind = AlreadyExistsError if reason == "AlreadyExists" else _TYPES.get(status, ApiError)
    message = str(body.get("message") or f"HTTP {status}")
    return kind(status, reason, f"{what}: {message}", body.get("details"))


# ---- Server-side apply: query and body of the request, and what a refusal says of other field managers
# The body is JSON sent as YAML, so it holds characters as they are: YAML knows no surrogate pairs. What YAML folds as
# a line break or does not print is escaped.


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
