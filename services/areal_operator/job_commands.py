"""Commands on an RLJob of a cluster: `areal status`, `why`, `view` and `set` of rljob/NAME."""

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from areal.errors import ConfigError
from areal.plan.cluster_names import HTTP_PORT, LABEL_JOB, LABEL_RUN, Role, front_host
from areal.spec.live import live_fields, nested, read_changes
from areal.spec.status import ConditionType, GpuUsage, JobStatus, Progress
from areal_view.commands import show_answer
from areal_view.why.job_causes import why_job
from areal_view.why.job_facts import JobFacts
from rich.console import Console
from rich.table import Table

from areal_operator.operator.times import parse, words
from areal_operator.submit.cluster import Cluster, connect
from areal_operator.submit.manifests import Json
from areal_operator.submit.page import kept_job, page_of

_ENDS = (ConditionType.FAILED, ConditionType.COMPLETE)
MANAGER = "areal-set"  # of the fields that `areal set` owns


def show_status(
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
    for row in lines(job.get("status", {}), time.time()):
        grid.add_row(*row)
    if base_url := base_url_of(job):
        grid.add_row("agents call", base_url)
    Console().print(grid)


def job_row(job: Json, now: float) -> dict[str, str]:
    """A job in words: how far it is, GPUs held and used, and what they brought. A dash is what nobody reported."""
    status = JobStatus.model_validate(job.get("status", {}))
    at, usage = status.progress or Progress(), status.usage or GpuUsage()
    hours = usage.until(now) / 3600
    return {
        "job": job["metadata"]["name"], "status": status.summary or "-", "step": f"{at.step}/{at.max_steps}",
        "reward": "-" if at.reward is None else f"{at.reward:.3f}", "gpus": str(usage.gpus), "gpuHours": f"{hours:.1f}",
        "groupsPerGpuHour": f"{(at.groups_trained or 0) / hours:.0f}" if hours else "-",
        "wasted": "-" if at.wasted_share is None else f"{at.wasted_share:.1%}",
    }  # fmt: skip


def kept_claims(cluster: Cluster, where: str) -> list[dict[str, str]]:
    """The claims of a namespace that outlive their jobs, a row of words each."""
    jobs, rows = {job["metadata"]["uid"] for job in cluster.all_of("RLJob", where)}, []
    for claim in cluster.all_of("PersistentVolumeClaim", where, selector=f"{LABEL_RUN},{LABEL_JOB}"):
        metadata, size = claim["metadata"], claim["spec"]["resources"]["requests"]["storage"]
        name, run = metadata["labels"][LABEL_JOB], metadata["labels"][LABEL_RUN]
        age = words(time.time() - (parse(metadata["creationTimestamp"]) or time.time()))
        row = {"claim": metadata["name"], "run": f"{name}-{run[:8]}", "size": size, "age": age}
        rows.append({**row, "job": "there" if run in jobs else "gone"})
    return rows


def show_why(name: str, namespace: str | None, kubeconfig: Path | None, context: str | None, *, as_json: bool) -> None:
    """Print why nothing is trained now, where, since when, and what to do."""
    cluster, job = find_job(name, namespace, kubeconfig, context)
    show_answer(why_job(facts_of(cluster, job, time.time())), as_json=as_json)


def show_page(name: str, namespace: str | None, kubeconfig: Path | None, context: str | None, port: int) -> None:
    """Print the address, and serve it until Ctrl-C or SIGTERM; then delete what was made for it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cluster, job = find_job(name, namespace, kubeconfig, context, kept=True)
    try:
        with page_of(job, cluster, port, lambda text: print(text, file=sys.stderr, flush=True)) as address:
            print(address, flush=True)
            while True:  # a pause would miss the signal that comes just before it
                time.sleep(0.5)
    except KeyboardInterrupt:
        return


def set_fields(
    name: str,
    changes: Sequence[str],
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
    *,
    as_json: bool,
) -> None:
    """Patch the job's spec; the API server refuses what breaks a rule, the operator takes the rest over."""
    wanted = read_changes(changes, live_fields())
    cluster, job = find_job(name, namespace, kubeconfig, context)
    made = cluster.merge("RLJob", job["metadata"]["namespace"], name, {"spec": nested(wanted)}, manager=MANAGER)
    in_force: dict[str, Any] = dict.fromkeys(wanted, made["spec"])
    for field in wanted:
        for key in field.split("."):
            in_force[field] = in_force[field].get(key) if isinstance(in_force[field], dict) else None
    print(json.dumps(in_force) if as_json else "\n".join(f"{field}  {value}" for field, value in in_force.items()))


def find_job(
    name: str, namespace: str | None, kubeconfig: Path | None, context: str | None, *, kept: bool = False
) -> tuple[Cluster, dict[str, Any]]:
    """The cluster, and the job there, or with `kept` one gone but for its claim. Raises ConfigError for none."""
    cluster = connect(kubeconfig, context)
    where = namespace or cluster.namespace
    job = cluster.get("RLJob", where, name) or (kept_job(cluster, where, name) if kept else None)
    if job is None:
        raise ConfigError(f"there is no RLJob {name!r} in {where}", fix="name its namespace: `kubectl get rljobs -A`")
    return cluster, job


def base_url_of(job: dict[str, Any]) -> str | None:
    """Base URL of the job's gateways for agents in the cluster; None without gateways. Pure."""
    rollout = job.get("spec", {}).get("rollout") or {}
    if not (rollout.get("gateway") or {}).get("replicas"):
        return None
    named, status = job["metadata"], JobStatus.model_validate(job.get("status", {}))
    scheme = "https" if status.runtime_snapshot is not None and status.runtime_snapshot.tls else "http"
    return f"{scheme}://{front_host(named['name'], named['namespace'], Role.GATEWAY)}:{HTTP_PORT}/v1"


def lines(raw: dict[str, Any], now: float) -> list[tuple[str, str]]:
    """Lines of a status for people: a subject and a sentence each, the newest step with its age. Pure."""
    status = JobStatus.model_validate(raw, by_alias=True, by_name=False)
    ended = [one for one in status.conditions if one.type in _ENDS and one.status == "True"]
    progress, found = status.progress, [("status", status.summary or "the operator has not looked yet")]
    if progress is not None:
        reward = f", reward {progress.reward:g}" if progress.reward is not None else ""
        made = progress.last_report_time
        age = f", made {words(now - made.timestamp())} ago" if made is not None and not ended else ""
        found.append(("step", f"{progress.step} of {progress.max_steps}{reward}{age}"))
    if (idle := status.idle) is not None:
        found.append(("why", f"{idle.sentence} ({idle.cause}, since {idle.since:%H:%M:%S} UTC)"))
    pods = ", ".join(f"{role.name} {role.ready}/{role.desired}" for role in status.roles if role.desired)
    if pods:
        found.append(("pods", pods))
    if status.checkpoint is not None:
        found.append(("checkpoint", f"of step {status.checkpoint.step}"))
    found += [(one.type, f"{one.reason}: {one.message}") for one in ended]
    for failure in status.failures[-1:]:
        named = f"{failure.reason}{f' [{failure.cause}]' if failure.cause else ''}"
        found.append(("last failure", f"{failure.pod or failure.role}: {named}, {failure.action}"))
    return found


def facts_of(cluster: Cluster, job: Json, now: float) -> JobFacts:
    """Read what the causes are found in; what the user may not read is left out."""
    where, mine = job["metadata"]["namespace"], f"{LABEL_JOB}={job['metadata']['name']}"
    return JobFacts(
        job=job,
        now=now,
        pods=_allowed(lambda: cluster.all_of("Pod", where, selector=mine)) or (),
        events=_allowed(lambda: cluster.all_of("Event", where)) or (),
        nodes=_allowed(lambda: cluster.all_of("Node")),
        claims=_allowed(lambda: cluster.all_of("PersistentVolumeClaim", where)),
    )


def _allowed(read: Callable[[], Sequence[Json]]) -> Sequence[Json] | None:
    try:
        return read()
    except ConfigError:
        return None
