"""The operator with many jobs on a real API server: time of a reconcile, memory, beside raw round trips.

The API server is real, its nodes are not there: jobs get all their first children and wait for their prepare pod. The
operator is a process of its own without a rate limit (`--qps` would be all that is measured). Three looks at a job:
the first makes its children, the next ones find nothing to do. The limit is what any controller must pay to look once
past its cache and to write once: a GET and a server-side apply of one ConfigMap, over the same client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

import httpx  # noqa: E402
import psutil  # noqa: E402
import yaml  # noqa: E402
from areal.plan.roles import free_ports  # noqa: E402
from areal_operator.kube.resources import CONFIGMAPS  # noqa: E402
from areal_operator.runtime.api import MANAGER, Api  # noqa: E402
from areal_operator.runtime.limiter import Limiter  # noqa: E402
from areal_operator.runtime.transport import connect  # noqa: E402
from kube.harness.control_plane import ControlPlane  # noqa: E402
from kube.harness.processes import eventually  # noqa: E402
from report import Figure, report  # noqa: E402
from support.operator_jobs import job_object  # noqa: E402

Json = dict[str, Any]
NAMESPACE = "bench"
SIZES = (1, 50, 200)  # 1000 takes minutes: --jobs 50 300 1000
MOST_MB, MOST_S = 200, 1.0  # goals with 1,000 jobs: the operator's memory, and a reconcile's p99
_STUCK_S = 300.0
RJ = ("areal.dev/v1alpha1", "RLJob")
RUNTIME = {
    "apiVersion": "areal.dev/v1alpha1",
    "kind": "ClusterRLRuntime",
    "metadata": {"name": "bench"},
    "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "registry.test/areal:0.1.0"}]}}},
}


def operate(arguments: argparse.Namespace) -> None:
    """The child: an operator that notes how long each reconcile took, by what it did."""
    from areal_operator.operator import main as operator

    took: list[tuple[str, str, float]] = []
    reconcile = operator.reconcile

    async def timed(key: tuple[str, str], world: Any) -> float | None:
        began, before = time.perf_counter(), written()
        again_s = await reconcile(key, world)
        took.append((key[1], "quiet" if written() == before else "busy", time.perf_counter() - began))
        return again_s

    def written() -> int:
        return sum(count for (method, _), count in answers.items() if method != "GET")

    answers: dict[tuple[str, int], int] = {}
    counted = operator.Manager.__init__

    def counting(self: Any, *given: Any, **named: Any) -> None:
        counted(self, *given, **named)
        self.api._on_answer = lambda method, status: answers.update(
            {(method, status): answers.get((method, status), 0) + 1}
        )

    operator.Manager.__init__ = counting  # type: ignore[method-assign]
    operator.reconcile = timed  # type: ignore[assignment]
    options = operator.OperatorOptions(
        kubeconfig=arguments.kubeconfig,
        default_runtime="bench",
        lease_namespace="default",
        bind="127.0.0.1",
        metrics_port=0,
        health_port=arguments.health_port,
        qps=1e6,
        burst=1_000_000,
        workers=arguments.workers,
    )

    logging.basicConfig(level=logging.WARNING)

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)

        def tell() -> None:
            spent = {f"{method} {status}": count for (method, status), count in sorted(answers.items())}
            cpu_s = sum(os.times()[:2])
            arguments.out.write_text(json.dumps({"took": took, "answers": spent, "cpu_s": cpu_s, "end": True}))
            took.clear()
            answers.clear()

        loop.add_signal_handler(signal.SIGUSR1, tell)
        await operator.run(options, stop)

    asyncio.run(run())


async def round_trips(kubeconfig: Path, rounds: int = 300) -> tuple[list[float], list[float]]:
    """Seconds of a GET, and of a server-side apply that changes something."""
    api = Api(await connect(kubeconfig), Limiter(1e6, 1_000_000))
    reads, writes = [], []
    for value in range(rounds):
        obj = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "limit", "namespace": NAMESPACE},
            "data": {"value": str(value)},
        }
        began = time.perf_counter()
        await api.apply(obj, manager=MANAGER)
        middle = time.perf_counter()
        await api.get(CONFIGMAPS, NAMESPACE, "limit")
        writes.append(middle - began)
        reads.append(time.perf_counter() - middle)
    await api.close()
    return reads, writes


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


@dataclass(frozen=True)
class Told:
    """What the operator did: seconds of reconciles that wrote and of others, answers by method and status, its CPU."""

    busy: list[float]
    quiet: list[float]
    answers: dict[str, int]
    cpu_s: float


class Bench:
    """A control plane and one operator on it."""

    def __init__(self, directory: Path) -> None:
        self.plane = ControlPlane(directory)
        self.out = directory / "took.json"
        self.log = directory / "operator.log"
        self.plane.start()
        self.admin = self.plane.admin
        for path in sorted((ROOT / "charts" / "areal" / "files" / "crds").glob("*.yaml")):
            self.admin.apply(yaml.safe_load(path.read_text()))
        eventually(lambda: self.admin.raw("GET", "/apis/areal.dev/v1alpha1"), "the CRDs")
        self.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        eventually(lambda: self._made(RUNTIME), "a runtime")
        (port,) = free_ports(1)
        command = [sys.executable, __file__, "--operate", "--kubeconfig", str(self.plane.kubeconfig)]
        command += ["--out", str(self.out), "--health-port", str(port)]
        self.operator = subprocess.Popen(command, stdout=self.log.open("wb"), stderr=subprocess.STDOUT)
        self.jobs = 0
        eventually(lambda: self._ready(port), "the operator leads", timeout_s=120)

    def stop(self) -> None:
        self.operator.terminate()
        self.operator.wait(30)
        self.plane.stop()

    def grow(self, size: int) -> float:
        """Create jobs up to `size`; seconds until all of them have been laid out."""
        began = time.perf_counter()
        for index in range(self.jobs, size):
            self.admin.create(job_object(NAMESPACE, f"job-{index}", model={"path": "/models/tiny"}))
        self.jobs = size
        there, moved = -1, time.perf_counter()
        while there < size:  # as long as the number grows: a busy machine is no fault
            time.sleep(0.5)
            now = self._laid_out()
            if now > there:
                there, moved = now, time.perf_counter()
            if time.perf_counter() - moved > _STUCK_S:
                said = self.log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"{there} of {size} jobs are laid out, no further one in {_STUCK_S:g} s: {said}")
        return time.perf_counter() - began

    def _ready(self, port: int) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def _laid_out(self) -> int:
        """How many, by one object and the server's count of the rest: a whole list would be what is measured."""
        page = self.admin.raw("GET", self.admin.path("batch/v1", "Job", NAMESPACE), params={"limit": 1})
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def _made(self, obj: Json) -> bool:
        return bool(self.admin.apply(obj))

    def took(self) -> Told:
        """Reconciles and requests since the last call."""
        self.out.unlink(missing_ok=True)
        self.operator.send_signal(signal.SIGUSR1)
        eventually(lambda: self.out.exists() and self.out.read_text().endswith("true}"), "the operator's notes")
        told = json.loads(self.out.read_text())
        by_kind = {kind: [each[2] for each in told["took"] if each[1] == kind] for kind in ("busy", "quiet")}
        return Told(by_kind["busy"], by_kind["quiet"], told["answers"], told["cpu_s"])

    def server_cpu_s(self) -> float:
        """Processor time of the API server so far."""
        times = psutil.Process(self.plane.apiserver.pid).cpu_times()
        return float(times.user + times.system)

    def touch(self, times: int) -> None:
        """Have jobs looked at that need nothing."""
        for turn in range(times):
            for index in range(0, self.jobs, max(1, self.jobs // 50)):
                metadata = {"name": f"job-{index}", "namespace": NAMESPACE}
                obj = {"apiVersion": RJ[0], "kind": RJ[1], "metadata": metadata}
                self.admin.patch(obj, {"metadata": {"annotations": {"bench": f"{turn}"}}})

    def memory_mb(self) -> float:
        return float(psutil.Process(self.operator.pid).memory_info().rss) / 2**20


def main(sizes: list[int]) -> None:
    directory = Path(tempfile.mkdtemp())
    bench = Bench(directory)
    try:
        time.sleep(2)  # memory is read at rest
        idle_mb = bench.memory_mb()
        figures, rows = [], []
        for size in sizes:
            before, server_s, more = bench.took(), bench.server_cpu_s(), size - bench.jobs
            laid_out_s = bench.grow(size)
            grown = bench.took()
            server_s, first = bench.server_cpu_s() - server_s, grown.busy
            reads, writes = asyncio.run(round_trips(bench.plane.kubeconfig))
            limit_s = statistics.median(reads) + statistics.median(writes)
            bench.touch(max(2, 100 // min(size, 50)))
            time.sleep(2)
            quiet = bench.took().quiet
            row = {
                "jobs": size,
                "laid_out_s": laid_out_s,
                "requests_a_job": sum(grown.answers.values()) / more,
                "cpu_ms_a_job": [1e3 * (grown.cpu_s - before.cpu_s) / more, 1e3 * server_s / more],
                "memory_mb": bench.memory_mb(),
                "busy_ms": [1e3 * percentile(first, share) for share in (0.5, 0.99)],
                "quiet_ms": [1e3 * percentile(quiet, share) for share in (0.5, 0.99)],
                "round_trip_ms": [
                    1e3 * percentile(values, share) for values in (reads, writes) for share in (0.5, 0.99)
                ],
                "looks": [len(first), len(quiet)],
            }
            rows.append(row)
            for name, seconds in (("quiet, p50", percentile(quiet, 0.5)), ("quiet, p99", percentile(quiet, 0.99))):
                figures.append(Figure(f"{size} jobs: looks, {name}", "1/s", 1 / seconds, 1 / limit_s, "GET + apply"))
            busy = percentile(first, 0.5)
            figures.append(Figure(f"{size} jobs: looks that write, p50", "1/s", 1 / busy, 1 / limit_s, "GET + apply"))
        report("operator", figures, idle_memory_mb=idle_mb, sizes=rows)
        print(
            f"  memory: {idle_mb:.0f} MB idle, " + ", ".join(f"{r['memory_mb']:.0f} MB with {r['jobs']}" for r in rows)
        )
        print(f"  goals with 1,000 jobs: {MOST_MB} MB, p99 of a reconcile below {MOST_S:g} s")
        for row in rows:
            print(
                "  " + json.dumps({k: [round(x, 1) for x in v] if isinstance(v, list) else v for k, v in row.items()})
            )
    finally:
        bench.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, nargs="+", default=list(SIZES), help="how many, in ascending order")
    parser.add_argument("--operate", action="store_true")
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--health-port", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    operate(given) if given.operate else main(given.jobs)
