"""Many jobs at once: all get there, nothing is made twice. Prints figures that `bench/bench_operator.py` bounds.

JOBS=1000 in the environment makes it the size that is promised, where the machine bears the control plane of it.
"""

from __future__ import annotations

import os
import time

import httpx
import pytest
from kube.harness.client import Client
from kube.harness.processes import eventually
from kube.jobs import API, brief, rljob, summary
from kube.operators import Ground, Operator
from support.scripted_pods import ScriptedPods

pytestmark = [pytest.mark.kube_api, pytest.mark.nightly]
JOBS = int(os.environ.get("JOBS", "100"))


def quantile(operator: Operator, name: str, q: float) -> float:
    """The upper bound of the bucket that holds the quantile of a histogram, over all its labels."""
    text = httpx.get(f"http://127.0.0.1:{operator.metrics_port}/metrics", trust_env=False).text
    buckets: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket"):
            bound = float(line.split('le="')[1].split('"')[0].replace("+Inf", "inf"))
            buckets[bound] = buckets.get(bound, 0.0) + float(line.rpartition(" ")[2])
    total = max(buckets.values(), default=0.0)
    return next((bound for bound in sorted(buckets) if buckets[bound] >= q * total), float("nan"))


@pytest.mark.timeout(600)
def test_many_jobs_at_once(
    admin: Client, pods: ScriptedPods, namespace: str, ground: Ground, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(ground, f"many-{namespace}", namespace=namespace, quick=False, qps=400, workers=8).wait_ready()
    try:
        idle_mb = operator.process.memory_mb()
        began = time.monotonic()
        for number in range(JOBS):
            name = f"job-{number}"
            pods.run(namespace, name).pace_s = 1.0
            admin.create(rljob(namespace, name, algorithm={"maxSteps": 100_000}))
        created = time.monotonic() - began

        def words() -> list[str]:
            return [summary(job) for job in admin.list(API, "RLJob", namespace)]

        eventually(lambda: words().count("Running") == JOBS, "all run", timeout_s=500, every_s=2.0)
        running = time.monotonic() - began
        memory = operator.process.memory_mb()
        epochs = [pods.run(namespace, f"job-{number}").epochs for number in range(JOBS)]
        assert epochs == [[1]] * JOBS
        failed = [brief(job) for job in admin.list(API, "RLJob", namespace) if job["status"].get("failures")]
        assert not failed
        p50, p99 = (quantile(operator, "areal_operator_reconcile_duration_seconds", q) for q in (0.5, 0.99))
        with capsys.disabled():
            print(f"\n{JOBS} jobs: created in {created:.0f} s, all training after {running:.0f} s;", end=" ")
            print(f"reconcile p50 ≤ {p50:g} s, p99 ≤ {p99:g} s; operator {memory:.0f} MB (idle {idle_mb:.0f} MB)")
    finally:
        operator.stop()
