"""Prometheus collector of RLJobs: samples made from their objects at each scrape.

Owns the mapping from an object to samples. Reads the cache only; a job without status has few series, a deleted one
none.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from areal.observe.catalog import CATALOG, Scope, Type
from areal.plan.cluster_names import Role, run_claim, workload
from areal.spec.cluster import RunPolicy
from areal.spec.status import GpuUsage
from areal.spec.training import CheckpointBlock
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from areal_operator.kube.resources import Json

_STATUSES = ("True", "False", "Unknown")
_CHECKPOINT_STEPS: int = CheckpointBlock.model_fields["interval_steps"].default  # where a job doesn't say
_STALL_S: int = RunPolicy.model_fields["stall_timeout_seconds"].default

Sample = tuple[str, dict[str, str], float]  # metric, its own labels, value


def samples(job: Json, now: float) -> Iterator[Sample]:
    """Samples of one RLJob; `now` is in seconds since 1970."""
    metadata, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    algorithm = spec.get("algorithm") or {}
    progress, attempts = status.get("progress") or {}, status.get("attempts") or {}
    about = {
        "algorithm": str(algorithm.get("name", "")),
        "runtime": str((spec.get("runtimeRef") or {}).get("name", "")),
        "managed_by": str(spec.get("managedBy", "")),
    }
    yield "info", about, 1.0
    if summary := status.get("summary"):
        yield "status", {"summary": summary}, 1.0
    for condition in status.get("conditions") or ():
        for word in _STATUSES:
            yield "condition", {"type": condition["type"], "status": word}, float(condition["status"] == word)
        yield "condition_reason", {"type": condition["type"], "reason": str(condition.get("reason", ""))}, 1.0
    for role in status.get("roles") or ():
        yield "role_desired", {"role": role["name"]}, float(role.get("desired") or 0)
        yield "role_ready", {"role": role["name"]}, float(role.get("ready") or 0)
    for claim in _claims(metadata["name"], spec):
        yield "volume_info", {"persistentvolumeclaim": claim}, 1.0
    numbers = {
        "progress_step": progress.get("step"),
        "max_steps": algorithm.get("maxSteps"),
        "policy_version": progress.get("policyVersion"),
        "oldest_served_version": progress.get("oldestServedVersion"),
        "groups_trained": progress.get("groupsTrained"),
        "reward": progress.get("reward"),
        "max_staleness": algorithm.get("maxStaleness"),
        "epoch": attempts.get("epoch"),
        "restarts_total": attempts.get("restarts"),
        "checkpoint_step": (status.get("checkpoint") or {}).get("step"),
        "checkpoint_interval_steps": (spec.get("checkpoint") or {}).get("intervalSteps", _CHECKPOINT_STEPS),
        "stall_timeout_seconds": (spec.get("runPolicy") or {}).get("stallTimeoutSeconds", _STALL_S),
    }
    times = {
        "created_timestamp_seconds": metadata.get("creationTimestamp"),
        "start_timestamp_seconds": status.get("startTime"),
        "completion_timestamp_seconds": status.get("completionTime"),
        "last_report_timestamp_seconds": progress.get("lastReportTime"),
    }
    losses: dict[tuple[str, ...], float] = {}
    for entry in status.get("failures") or ():  # the newest is last
        labels = tuple(str(entry.get(name, "")) for name in ("role", "owner", "node"))
        losses[labels] = datetime.fromisoformat(entry["time"]).timestamp()
    for (role, owner, node), at in losses.items():
        yield "loss_timestamp_seconds", {"role": role, "owner": owner, "node": node}, at
    if told := status.get("usage"):
        usage = GpuUsage.model_validate(told)
        numbers |= {"gpus": usage.gpus, "gpu_seconds_total": usage.until(now)}
    for name, value in numbers.items():
        if isinstance(value, int | float):
            yield name, {}, float(value)
    for name, stamp in times.items():
        if stamp:
            yield name, {}, datetime.fromisoformat(stamp).timestamp()


def _claims(job: str, spec: Json) -> Iterator[str]:
    """The volume claims that a job writes to: its run directory's, and its own Redis'."""
    yield (spec.get("storage") or {}).get("claimName") or run_claim(job)
    if (spec.get("replay") or {}).get("backend") != "External":
        yield workload(job, Role.REDIS)


class JobCollector(Collector):
    """Serves all jobs at each scrape, in the process that leads only: two processes would tell everything twice."""

    def __init__(self, jobs: Callable[[], Iterable[Json]], leads: Callable[[], bool]) -> None:
        self._jobs = jobs
        self._leads = leads

    def describe(self) -> Iterable[Metric]:
        """No scrape at registration."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One family a metric, one sample a job and labels."""
        families = {metric.name: _family(metric.name) for metric in CATALOG.values() if metric.scope is Scope.JOB}
        for job in self._jobs() if self._leads() else ():
            metadata = job["metadata"]
            for short, labels, value in samples(job, time.time()):
                name = f"areal_rljob_{short}"
                own = [labels[label] for label in CATALOG[name].labels]
                families[name].add_metric([metadata["namespace"], metadata["name"], *own], value)
        return families.values()


def _family(name: str) -> Any:
    metric = CATALOG[name]
    labels = (*metric.scope.labels, *metric.labels)
    if metric.type is Type.COUNTER:
        return CounterMetricFamily(name, metric.help, labels=labels)
    return GaugeMetricFamily(name, metric.help, labels=labels)
