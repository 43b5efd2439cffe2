"""Explanations of the API server's refusals for whoever submits a job: what they mean and what to do about each."""

from __future__ import annotations

from areal.errors import ArealError, ConfigError, InfraError

from areal_operator.kube.errors import ApiError

_OUR_KINDS = ("RLJob", "RLRuntime", "ClusterRLRuntime")
_RIGHTS = (
    "Ask whoever runs the cluster for the right: in its namespace `areal submit` applies configmaps, "
    "persistentvolumeclaims and rljobs, creates, watches and deletes pods, and creates pods/exec; it reads "
    "clusterrlruntimes."
)


def explanation(error: ApiError, what: str, kind: str, namespace: str, *, absent_ok: bool = False) -> ArealError | None:
    """The error to show for a refusal of `what`; None for an object that may be absent."""
    status, said, reason, details = error.status, error.message, error.reason, error.details
    if status == 404 and not details and kind in _OUR_KINDS:
        return ConfigError(
            f"can't {what}: the cluster knows no {kind}",
            fix="Install the chart: `helm install areal charts/areal -n areal-system …`, as docs/install.md says.",
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
