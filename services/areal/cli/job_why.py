"""`areal why rljob/NAME`: the cause table of jobs on a cluster, over what its API server holds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson
from areal_operator.submit.cluster import Cluster
from areal_operator.submit.manifests import Json
from areal_view.why.causes import Answer
from areal_view.why.job_causes import why_job
from areal_view.why.job_facts import JobFacts

from areal.cli.job_status import find_job
from areal.errors import ConfigError
from areal.plan.cluster_names import LABEL_JOB


def job_why_command(
    name: str, namespace: str | None, kubeconfig: Path | None, context: str | None, *, as_json: bool
) -> None:
    """Print why nothing is trained now, where, since when, and what to do."""
    cluster, job = find_job(name, namespace, kubeconfig, context)
    show(why_job(facts_of(cluster, job, time.time())), as_json=as_json)


def show(answer: Answer, *, as_json: bool) -> None:
    """Print an answer for people or for scripts."""
    if as_json:
        sys.stdout.buffer.write(orjson.dumps({**asdict(answer), "sentence": answer.sentence}) + b"\n")
        return
    print(answer.sentence)
    if answer.fix:
        print(f"  fix: {answer.fix}")


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
