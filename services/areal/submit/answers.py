"""What the API server's refusals mean to somebody who submits a job, and what to do about each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from areal.errors import ArealError, ConfigError, InfraError

_OUR_KINDS = ("RLJob", "RLRuntime", "ClusterRLRuntime")
_RIGHTS = (
    "Ask whoever runs the cluster for the right: in its namespace `areal submit` applies configmaps, "
    "persistentvolumeclaims and rljobs, creates, watches and deletes pods, and creates pods/exec; it reads "
    "clusterrlruntimes."
)


@contextmanager
def explained(host: str, what: str, kind: str, namespace: str, *, absent_ok: bool = False) -> Iterator[None]:
    """Turn what the client library raises into our errors. `absent_ok`: nothing is raised when there is no object."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as refusal:
        body = refusal.body or refusal.reason  # a websocket that isn't opened has a reason only
        if (error := refused(refusal.status, body, what, kind, namespace, absent_ok=absent_ok)) is not None:
            raise error from None
    except (HTTPError, OSError) as error:
        raise InfraError(
            f"can't {what}: no API server answers at {host} ({_root(error)})",
            fix="Check that the cluster runs, and kubeconfig and context: `kubectl cluster-info`.",
        ) from error


def refused(
    status: int, body: Any, what: str, kind: str, namespace: str, *, absent_ok: bool = False
) -> ArealError | None:
    """The error for an answer of 400 or more; None for an object that may be absent."""
    said, reason, details = _said(body)
    if status == 404 and (said == "" or not details) and kind in _OUR_KINDS:
        return ConfigError(
            f"can't {what}: the cluster knows no {kind}",
            fix="Install the chart: `helm install areal charts/areal --namespace areal-system --create-namespace`.",
        )
    if status == 404 and details.get("kind") == "namespaces":
        return ConfigError(
            f"there is no namespace {namespace!r}",
            fix=f"Create it with `kubectl create namespace {namespace}`, or name another with -n.",
        )
    if status == 404 and absent_ok:
        return None
    if status == 401:
        return ConfigError(
            f"can't {what}: the cluster doesn't know who you are",
            fix="Log in again, or check the user of the kubeconfig's context.",
        )
    if status == 403 and reason == "Forbidden" and " cannot " in said:
        return ConfigError(f"can't {what}: {said}", fix=_RIGHTS)
    if status in (400, 403, 409, 422):
        return ConfigError(f"can't {what}: {said}", fix="Correct what the message names.")
    return InfraError(f"can't {what}: the API server answered {status}: {said}", fix="Try again.")


def _said(body: Any) -> tuple[str, str, dict[str, Any]]:
    """Message, reason and details of a Status; of another answer its text."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        status = json.loads(text)
    except ValueError:
        return text.strip(), "", {}
    details = status.get("details") or {}
    return str(status.get("message", "")), str(status.get("reason", "")), details


def _root(error: BaseException) -> str:
    while error.__cause__ is not None or getattr(error, "reason", None) is not None:
        inner = getattr(error, "reason", None) or error.__cause__
        if not isinstance(inner, BaseException):
            break
        error = inner
    return str(error)
