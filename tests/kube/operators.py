"""Operators under test: each a process of its own, with the rights that the chart gives it and no more."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from areal.plan.roles import free_ports
from kube.harness import tools
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.processes import Process
from support.scripted_pods import ScriptedPods

HOME = "areal-system"
RUNTIME = "areal-cpu"
CHART = tools.ROOT / "charts" / "areal"
PYTHONPATH = os.pathsep.join(str(tools.ROOT / room) for room in ("tests", "services"))  # this tree, wherever installed


@dataclass(frozen=True)
class Ground:
    """What operators stand on: a cluster with the chart's rights and runtimes, and pods that answer."""

    cluster: Cluster
    kubeconfig: Path  # of the operator's service account
    pods: ScriptedPods
    directory: Path


def prepare_ground(cluster: Cluster, pods: ScriptedPods, directory: Path, *has: str) -> Ground:
    """Install the chart's service account, rights and CPU runtime, and log in as that account. `has`: what the chart
    finds in the cluster, as group/version/kind."""
    cluster.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    for obj in rendered("rbac-operator", *has):
        cluster.admin.apply(obj)
    for obj in rendered("runtimes", *has):
        for one in runtimes_in(obj):
            cluster.admin.apply(one)
    token = tools.kubectl(
        cluster.kubeconfig, "create", "token", "areal-operator", "--duration=6h", namespace=HOME
    ).stdout
    return Ground(cluster, cluster.as_token("areal-operator", token.strip()), pods, directory)


def rendered(template: str, *has: str, values: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The objects of one of the chart's templates, with `values` (`tls.mode=CertManager`) beside those of the tests."""
    flags = ["-f", str(CHART / "ci" / "cpu-values.yaml")]
    flags += [f"--set={one}" for one in ("operator.kueue=true", *values)]
    flags += [f"--api-versions={one}" for one in has]
    command = ["template", "areal", str(CHART), *flags, "-s", f"templates/{template}.yaml"]
    return [obj for obj in yaml.safe_load_all(tools.helm(None, *command, namespace=HOME).stdout) if obj]


def runtimes_in(config_map: dict[str, Any]) -> list[dict[str, Any]]:
    """The ClusterRLRuntimes that the chart's ConfigMap holds for the operator."""
    return [json.loads(text) for text in config_map["data"].values()]


class Operator:
    """One running operator."""

    def __init__(
        self, ground: Ground, identity: str, *, namespace: str = "", quick: bool = True, **flags: object
    ) -> None:
        """`namespace` narrows it, and its lease, to one; such an operator has every right, and no rival elsewhere.

        `quick`: looks more often than in production.
        """
        self.identity = identity
        self.metrics_port, self.health_port = free_ports(2)
        kubeconfig = ground.cluster.kubeconfig if namespace else ground.kubeconfig
        options = {
            "kubeconfig": kubeconfig,
            "book": ground.pods.book,
            "identity": identity,
            "lease-namespace": namespace or HOME,
            "default-runtime": RUNTIME,
            "qps": 200,
            "metrics-port": self.metrics_port,
            "health-port": self.health_port,
            **{name.replace("_", "-"): value for name, value in flags.items()},
        }
        command = [
            sys.executable,
            "-m",
            "kube.operator_process",
            *(f"--{name}={value}" for name, value in options.items()),
        ]
        command += [f"--namespace={namespace}"] if namespace else []
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "QUICK": "yes" if quick else "no"}
        self.process = Process("operator", command, ground.directory / f"{identity}.log", env=environment)

    def wait_ready(self) -> Operator:
        """Once its caches are full."""
        self.process.wait_until(self._is_ready, "ready", timeout_s=60)
        return self

    @property
    def leads(self) -> bool:
        """Whether it holds the lease."""
        return self.metric("areal_operator_leader") == 1.0

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", trust_env=False).text
        total = 0.0
        for line in text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(
                f'{key}="{wanted}"' in sample for key, wanted in labels.items()
            ):
                total += float(value)
        return total

    def stop(self) -> None:
        """Ends it in peace: it gives the lease back."""
        self.process.stop(grace_s=20)

    def _is_ready(self) -> bool:
        try:
            return bool(
                httpx.get(f"http://127.0.0.1:{self.health_port}/readyz", timeout=2.0, trust_env=False).status_code
                == 200
            )
        except httpx.HTTPError:
            return False


def children(admin: Client, namespace: str) -> dict[str, str]:
    """Everything of the operator's in a namespace: kind/name → uid."""
    kinds = [
        ("v1", kind) for kind in ("Pod", "Service", "ConfigMap", "Secret", "PersistentVolumeClaim", "ServiceAccount")
    ]
    kinds += [("apps/v1", "StatefulSet"), ("apps/v1", "Deployment"), ("batch/v1", "Job")]
    kinds += [("policy/v1", "PodDisruptionBudget"), ("networking.k8s.io/v1", "NetworkPolicy")]
    found = [obj for version, kind in kinds for obj in admin.list(version, kind, namespace, "areal.dev/rljob")]
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj["metadata"]["uid"] for obj in found}
