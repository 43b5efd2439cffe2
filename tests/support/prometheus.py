"""A real Prometheus that scrapes the roles of a job on loopback by the chart's own PodMonitor, for tests of boards."""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from areal.plan.resolved import ResolvedJob
from areal.plan.roles import free_ports
from kube.harness.tools import tool

INTERVAL_S = 1
_RELABEL = {"sourceLabels": "source_labels", "targetLabel": "target_label"}


@dataclass(frozen=True)
class Prometheus:
    """A server at `address`."""

    address: str

    def ask(self, path: str, **parameters: str | float) -> Any:
        """What the HTTP API answers; an error of it fails the test."""
        answer = httpx.get(f"{self.address}/api/v1/{path}", params=parameters, timeout=30.0).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def down(self) -> list[str]:
        """Targets that were not scraped, each with its error."""
        found = self.ask("targets")["activeTargets"]
        return [f"{one['scrapeUrl']} {one['lastError']}" for one in found if one["health"] != "up"]

    def drawn(self, expression: str, seconds: float) -> dict[tuple[tuple[str, str], ...], list[float]]:
        """By labels, the numbers that a graph of the last `seconds` draws; a series that is NaN throughout has none."""
        now = time.time()
        found = self.ask("query_range", query=expression, start=now - seconds, end=now, step=INTERVAL_S)["result"]
        series = {
            tuple(sorted(one["metric"].items())): [
                value for _, text in one["values"] if math.isfinite(value := float(text))
            ]
            for one in found
        }
        return {labels: values for labels, values in series.items() if values}


def targets(job: ResolvedJob, namespace: str) -> list[dict[str, Any]]:
    """The roles of a local job as pods, in the labels that Kubernetes' service discovery would give them."""
    found = []
    for name, ports in job.ports.items():
        if "metrics" in ports:
            labels = {
                "__meta_kubernetes_namespace": namespace,
                "__meta_kubernetes_pod_label_areal_dev_rljob": job.name,
                "__meta_kubernetes_pod_label_areal_dev_role": re.sub(r"-\d+$", "", name),
                "__meta_kubernetes_pod_name": f"{job.name}-{name}",
            }
            found.append({"targets": [f"127.0.0.1:{ports['metrics']}"], "labels": labels})
    return found


def scrape_config(monitor: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    """The scrape configuration that the Prometheus operator makes of a PodMonitor's endpoint `metrics`, which each of
    these pods has, discovery aside."""
    [endpoint] = [one for one in monitor["spec"]["podMetricsEndpoints"] if one["port"] == "metrics"]
    assert endpoint.keys() <= {"port", "interval", "honorLabels", "relabelings", "metricRelabelings"}
    return {
        "job_name": monitor["metadata"]["name"],
        "honor_labels": endpoint["honorLabels"],
        "relabel_configs": _rules(endpoint.get("relabelings", [])),
        "metric_relabel_configs": _rules(endpoint.get("metricRelabelings", [])),
        "static_configs": found,
    }


def _rules(relabelings: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{_RELABEL.get(key, key): value for key, value in rule.items()} for rule in relabelings]


@contextmanager
def prometheus(directory: Path, scrape: dict[str, Any]) -> Iterator[Prometheus]:
    """Run one that scrapes by one configuration, every second."""
    program = tool("prometheus")
    (port,) = free_ports(1)
    directory.mkdir(parents=True, exist_ok=True)
    every = f"{INTERVAL_S}s"
    config = {"global": {"scrape_interval": every, "evaluation_interval": every}, "scrape_configs": [scrape]}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    log = directory / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    made = Prometheus(f"http://127.0.0.1:{port}")
    try:
        _until_ready(process, made.address, log)
        yield made
    finally:
        process.terminate()
        process.wait(60)


def _until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"Prometheus is not ready:\n{log.read_text()}"
        try:
            if httpx.get(f"{address}/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.1)
