"""Kueue on the tests' control plane: its definitions, small or its own, its process, and what tests ask of it.

The small definitions hold the fields that the operator writes and reads, with Kueue's rules for them, so that strict
field validation says of each landing what Kueue's own would. Kueue itself (`tools/k8s/build nightly`) brings its own.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from areal.plan.roles import free_ports
from kube.harness import tools
from kube.harness.client import Client, Refused
from kube.harness.control_plane import Cluster
from kube.harness.processes import Process, eventually

API = "kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
Object = dict[str, Any]

_TEXT, _COUNT, _OPEN = (
    {"type": "string"},
    {"type": "integer"},
    {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
)


def _object(required: tuple[str, ...] = (), **properties: Object) -> Object:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def _map_list(key: str, item: Object, most: int) -> Object:
    return {
        "type": "array", "items": item, "maxItems": most, "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }  # fmt: skip


_POD_SET = _object(("name", "count", "template"), name=_TEXT, count=_COUNT, minCount=_COUNT, template=_OPEN)
_POD_SET["x-kubernetes-validations"] = [{"rule": "!has(self.minCount) || self.minCount <= self.count"}]
_SPEC = _object(
    queueName=_TEXT,
    active={"type": "boolean", "default": True},
    priority=_COUNT,
    priorityClassRef=_object(("group", "kind", "name"), group=_TEXT, kind=_TEXT, name=_TEXT),
    podSets=_map_list("name", _POD_SET, 8),
)
_SPEC["x-kubernetes-validations"] = [{"rule": "!has(self.priorityClassRef) || has(self.priority)"}]
_ASSIGNMENT = _object(
    ("name",), name=_TEXT, count=_COUNT, flavors={"type": "object", "additionalProperties": _TEXT}, resourceUsage=_OPEN
)
_CONDITION = _object(
    ("type", "status", "reason", "message", "lastTransitionTime"),
    type=_TEXT, status={"type": "string", "enum": ["True", "False", "Unknown"]}, message=_TEXT,
    reason={"type": "string", "minLength": 1},
    lastTransitionTime={"type": "string", "format": "date-time"}, observedGeneration=_COUNT,
)  # fmt: skip
_STATUS = _object(
    admission=_object(
        ("clusterQueue", "podSetAssignments"),
        clusterQueue=_TEXT, podSetAssignments={"type": "array", "items": _ASSIGNMENT, "maxItems": 8},
    ),
    conditions=_map_list("type", _CONDITION, 16),
)  # fmt: skip


def small_definitions() -> list[Object]:
    """Workload, ResourceFlavor and WorkloadPriorityClass, as far as the operator knows them."""
    workload = _object(spec=_SPEC, status=_STATUS)
    workload["x-kubernetes-validations"] = [
        {
            "rule": "!has(oldSelf.status) || !has(oldSelf.status.admission) || !has(self.status) || "
            "!has(self.status.admission) || self.spec.podSets == oldSelf.spec.podSets",
            "message": "podSets are immutable while quota is reserved",
        }
    ]
    flavor = _object(spec=_OPEN)
    priority = _object(("value",), value=_COUNT, description=_TEXT)
    return [
        _definition("Workload", "workloads", workload, "Namespaced"),
        _definition("ResourceFlavor", "resourceflavors", flavor, "Cluster"),
        _definition("WorkloadPriorityClass", "workloadpriorityclasses", priority, "Cluster"),
    ]


def _definition(kind: str, plural: str, schema: Object, scope: str) -> Object:
    version = {
        "name": "v1beta2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
        **({"subresources": {"status": {}}} if kind == "Workload" else {}),
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.kueue.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": "kueue.x-k8s.io", "scope": scope, "versions": [version],
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
        },
    }  # fmt: skip


def install(admin: Client, definitions: list[Object]) -> None:
    """Apply definitions, and wait until the API server serves them."""
    for definition in definitions:
        admin.apply(definition)
    for definition in definitions:
        path = f"/apis/kueue.x-k8s.io/v1beta2/{definition['spec']['names']['plural']}"
        eventually(lambda path=path: _served(admin, path), f"{path} is served")


def _served(admin: Client, path: str) -> bool:
    try:
        return "items" in admin.raw("GET", path)
    except Refused as refused:
        if refused.code not in (404, 429, 503):
            raise
        return False


class Kueue:
    """Kueue's controller as `tools/k8s/build nightly` built it, without its webhooks; `start` it, then `stop` it."""

    def __init__(self, cluster: Cluster, directory: Path, **settings: Any) -> None:
        """`settings` are more of its configuration: `fairSharing={…}`."""
        self._cluster = cluster
        self._directory = directory
        self._settings = settings
        self.process: Process | None = None

    def start(self) -> None:
        """Install its own definitions and return when it answers."""
        crds = sorted((tools.tools_dir().parent / "kueue").glob("*.yaml"))
        assert crds, "Kueue's definitions aren't there: run `tools/k8s/build nightly`"
        definitions = [yaml.safe_load(path.read_text()) for path in crds]
        for definition in definitions:  # only the version that the operator knows: others want a conversion webhook
            definition["spec"].pop("conversion", None)
            definition["spec"]["versions"] = [v for v in definition["spec"]["versions"] if v["name"] == "v1beta2"]
        install(self._cluster.admin, [one for one in definitions if one["spec"]["versions"]])
        health, webhook = free_ports(2)
        certificates = self._directory / "etc" / "kueue" / "metrics" / "certs"
        certificates.mkdir(parents=True, exist_ok=True)
        self._self_signed(certificates)
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
            "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"}, "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates)},
            "integrations": {"frameworks": ["batch/job"], "externalFrameworks": ["RLJob.v1alpha1.areal.dev"]},
            **self._settings,
        }  # fmt: skip
        path = self._directory / "kueue.yaml"
        path.write_text(json.dumps(config))
        run = [tools.tool("kueue"), f"--config={path}", f"--kubeconfig={self._cluster.kubeconfig}"]
        run.append("--feature-gates=VisibilityOnDemand=false")
        # It reads one pair of certificates at a fixed place below /etc.
        upper, work = self._directory / "etc", self._directory / "etc-work"
        work.mkdir(exist_ok=True)
        overlay = f"mount -t overlay overlay -o lowerdir=/etc,upperdir={upper},workdir={work} /etc"
        command = ["unshare", "--mount", "sh", "-c", f"{overlay} && exec {shlex.join(run)}"]
        self.process = Process("kueue", command, self._directory / "kueue.log")

        def ready() -> bool:
            assert self.process is not None
            return "Starting workers" in self.process.tail(1000)

        self.process.wait_until(ready, "its workers", timeout_s=180)

    def stop(self) -> None:
        """Ends it."""
        if self.process is not None:
            self.process.stop()

    def _self_signed(self, directory: Path) -> None:
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kueue"]
        tools.run([*command, "-keyout", str(directory / "tls.key"), "-out", str(directory / "tls.crt")])


def queue(
    admin: Client, namespace: str, *, cpu: str, name: str = "gpus", node_labels: dict[str, str] | None = None
) -> None:
    """A ClusterQueue of so many processors, which preempts by priority, and the namespace's LocalQueue `name`."""
    own = f"{namespace}-{name}"
    labels = {"nodeLabels": node_labels} if node_labels else {}
    admin.create({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": own}, "spec": labels})
    quotas = [
        {"name": "cpu", "nominalQuota": cpu},
        *({"name": name, "nominalQuota": "1Ti"} for name in ("memory", "ephemeral-storage")),
    ]
    groups = [{"coveredResources": [one["name"] for one in quotas], "flavors": [{"name": own, "resources": quotas}]}]
    preempts = {"withinClusterQueue": "LowerPriority"}
    spec = {"namespaceSelector": {}, "resourceGroups": groups, "preemption": preempts}
    admin.create({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": own}, "spec": spec})
    local = {"name": name, "namespace": namespace}
    admin.create({"apiVersion": API, "kind": "LocalQueue", "metadata": local, "spec": {"clusterQueue": own}})


def labelled(job: Object, **labels: str) -> Object:
    """The job in a queue: `queue="gpus"`, and perhaps `priority="urgent"`."""
    names = {"queue": QUEUE_LABEL, "priority": "kueue.x-k8s.io/priority-class"}
    told = {names[word]: value for word, value in labels.items()}
    return {**job, "metadata": {**job["metadata"], "labels": told}}


def workload(admin: Client, namespace: str, name: str = "tiny") -> Object:
    """A job's Workload now; empty when there is none."""
    return admin.get(API, "Workload", namespace, name) or {}


def millis(found: Object) -> int:
    """Thousandths of a processor that a Workload asks for."""
    return sum(
        one["count"] * int(container["resources"]["requests"]["cpu"].removesuffix("m"))
        for one in found["spec"]["podSets"]
        for container in one["template"]["spec"]["containers"]
    )


def holds(found: Object, kind: str) -> bool:
    """Whether a condition of a Workload is True."""
    conditions = found.get("status", {}).get("conditions", [])
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def turn(admin: Client, namespace: str, change: Callable[..., Object], name: str = "tiny", **options: Any) -> None:
    """A scripted queue writes: what `support.scripted_queue` makes of the Workload now."""
    before = eventually(lambda: workload(admin, namespace, name), f"{name} has a Workload")
    after = change(before, **options)
    if after["spec"] != before["spec"]:
        admin.patch(before, {"spec": {"active": after["spec"].get("active", True)}})
    admin.patch(before, {"status": after["status"]}, subresource="status")
