"""`areal status rljob/NAME`: a job on a cluster, as its operator last wrote it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from areal.errors import ConfigError
from areal.plan.cluster_names import HTTP_PORT, Role, front_host
from areal.spec.status import ConditionType, JobStatus

if TYPE_CHECKING:
    from areal_operator.submit.cluster import Cluster


def job_status_command(
    name: str, namespace: str | None, kubeconfig: Path | None, context: str | None, *, as_json: bool
) -> None:
    """Print the job's status; the whole of it with `as_json`."""
    _, job = find_job(name, namespace, kubeconfig, context)
    if as_json:
        sys.stdout.write(json.dumps(job.get("status", {})) + "\n")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for row in lines(job.get("status", {})):
        grid.add_row(*row)
    if base_url := base_url_of(job):
        grid.add_row("agents call", base_url)
    Console().print(grid)


def find_job(
    name: str, namespace: str | None, kubeconfig: Path | None, context: str | None
) -> tuple[Cluster, dict[str, Any]]:
    """The cluster, and the job as it is there. Raises ConfigError when there is none."""
    from areal_operator.submit.cluster import connect

    cluster = connect(kubeconfig, context)
    where = namespace or cluster.namespace
    job = cluster.get("RLJob", where, name)
    if job is None:
        raise ConfigError(f"there is no RLJob {name!r} in {where}", fix="name its namespace: `kubectl get rljobs -A`")
    return cluster, job


def base_url_of(job: dict[str, Any]) -> str | None:
    """Where agents in the cluster call the job's gateways; None without gateways. Pure."""
    rollout = job.get("spec", {}).get("rollout") or {}
    if not (rollout.get("gateway") or {}).get("replicas"):
        return None
    named = job["metadata"]
    return f"http://{front_host(named['name'], named['namespace'], Role.GATEWAY)}:{HTTP_PORT}/v1"


def lines(raw: dict[str, Any]) -> list[tuple[str, str]]:
    """What a status says, for people: a subject and a sentence each. Pure."""
    status = JobStatus.model_validate(raw, by_alias=True, by_name=False)
    progress, found = status.progress, [("status", status.summary or "the operator has not looked yet")]
    if progress is not None:
        reward = f", reward {progress.reward:g}" if progress.reward is not None else ""
        found.append(("step", f"{progress.step} of {progress.max_steps}{reward}"))
    if (idle := status.idle) is not None:
        place = idle.pod or idle.role
        text = idle.text if not place or idle.text.startswith(f"{place}:") else f"{place}: {idle.text}"
        found.append(("why", f"{text} ({idle.cause}, since {idle.since:%H:%M:%S} UTC)"))
    pods = ", ".join(f"{role.name} {role.ready}/{role.desired}" for role in status.roles if role.desired)
    if pods:
        found.append(("pods", pods))
    if status.checkpoint is not None:
        found.append(("checkpoint", f"of step {status.checkpoint.step}"))
    ends = (ConditionType.FAILED, ConditionType.COMPLETE)
    ended = [one for one in status.conditions if one.type in ends and one.status == "True"]
    found += [(one.type, f"{one.reason}: {one.message}") for one in ended]
    for failure in status.failures[-1:]:
        found.append(("last failure", f"{failure.pod or failure.role}: {failure.reason}, {failure.action}"))
    return found
