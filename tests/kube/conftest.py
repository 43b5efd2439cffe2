"""Tests on a real Kubernetes API server (level 2, marker `kube_api`).

What they have, from `kube.harness` (fixtures are shared by every room of tests/):

    pytestmark = pytest.mark.kube_api

    def test_a_pod_becomes_ready(admin, kwok, namespace, kubectl): ...

- `cluster`: etcd, kube-apiserver, controller-manager and scheduler on loopback, started once a session (4 s):
  `.kubeconfig`, `.url`, `.admin`. With KUBECONFIG set it is that cluster instead.
- `control_plane`: the same with `.restart_apiserver()`, `.stop_apiserver()`, `.start_apiserver()`, `.compact()` and
  `.as_user(name, *groups)`; it skips on a cluster that is not ours.
- `admin`: a `Client` of plain dicts: `get list create apply patch delete watch raw`; an answer of 400 or more raises
  `Refused` with `.code .reason .message`.
- `kwok`: ten fake nodes. Pods get scheduled, become Ready and, under a Job, succeed; the annotations in
  harness/stages/pods.yaml make them wait or fail; `kwok.end_container(namespace, pod, 137)`, `.fail_pod(…)` and
  `.set_condition(namespace, pod, "DisruptionTarget")` deal a blow to one pod.
- `crds`: RLJob, RLRuntime and ClusterRLRuntime are installed. A test that installs the chart with its CRDs starts a
  control plane of its own: `ControlPlane(tmp_path)`, `.start()`, `.stop()`.
- `volumes` (part of `kwok`): a default StorageClass whose claims bind at once, in every access mode.
- `namespace`: a fresh one, `restricted` enforced.
- `kubectl("get", "pods", namespace=namespace).stdout`, `helm("install", …)`: with every right. `kube.harness.tools` has
  both without fixtures, and `tools_dir()`, `tool("etcd")`.
- `kube.harness.processes.eventually(probe, "what")` waits for a result that other processes bring about.

Where the programs come from: KUBE_ASSETS=<folder>, else what `make k8s-tools` built; without them a test fails and says
so.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube.harness.control_plane import Cluster
from kube.harness.fleet import Fleet
from kube.operators import Ground, Operator, prepare_ground
from support.scripted_pods import ScriptedPods


@pytest.fixture(scope="session")
def ground(cluster: Cluster, crds: None, kwok: Fleet, workplace: Path) -> Iterator[Ground]:
    """The chart's rights and runtime are installed, and fake pods answer: `Operator(ground, "name", …)`."""
    with ScriptedPods(cluster.kubeconfig, workplace) as pods:
        yield prepare_ground(cluster, pods, workplace / "log")


@pytest.fixture(scope="session")
def pods(ground: Ground) -> ScriptedPods:
    """What runs in the fake pods: `pods.run(namespace, job)`."""
    return ground.pods


@pytest.fixture(scope="module")
def operator(ground: Ground) -> Iterator[Operator]:
    """One operator for all namespaces, with the chart's rights, while a module's tests run."""
    one = Operator(ground, f"shared-{secrets.token_hex(3)}").wait_ready()
    yield one
    one.stop()
