"""A driver of devices on the node (dynamic resource allocation), and what containers see of the devices it prepares.

The driver is Kubernetes' own test driver (`tools/k8s/build nightly`): it publishes a ResourceSlice, registers with the
kubelet and prepares claims by CDI files, from which containerd gives a container a variable and a file that names its
devices. Nothing stands behind a device, so the images of the pods that claim any only wait.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from kube.harness.client import Object
from kube.harness.processes import Process, eventually
from kube.harness.tools import MissingTool, tool
from node.harness.archive import write_image
from node.harness.configs import NODE
from node.harness.jobs import API
from node.harness.node import Node

DRIVER = "gpu.areal.test"
RUNTIME = "devices"
WAITING_IMAGE = "areal.test/waiting:1"
_RESOURCES = "resource.k8s.io/v1"
_SEEN = f"/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpus/gpus/{DRIVER}-metadata.json"
_WAITS = "#!/bin/sh\ntrap 'exit 0' TERM\nsleep 2147483647 & wait\n"


class DeviceDriver:
    """The driver of the node's devices: `start` it, `kill` it, `stop` it."""

    def __init__(self, node: Node, models: Sequence[str]) -> None:
        """`models`: one for each device, which are called gpu-0, gpu-1, …"""
        self._node, self._models = node, models
        self._process: Process | None = None

    def start(self) -> None:
        """Returns when its devices are published."""
        node = self._node
        command = ["nsenter", f"--target={node.pid}", "--mount", "--net", tool("dra-driver"), f"--name={DRIVER}"]
        command += [f"--kubeconfig={node.directory / 'control-plane' / 'pki' / 'admin.kubeconfig'}", f"--node={NODE}"]
        command += [f"--root={node.directory / 'kubelet'}", f"--models={','.join(self._models)}"]
        self._process = Process("dra-driver", command, node.logs / "dra-driver.log")
        self._process.wait_until(lambda: bool(slices(node)), "its devices are published")

    def kill(self) -> None:
        """Ends it at once: its sockets stay, with nobody behind them."""
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        """Ends it and takes its devices away, as the kubelet does half a minute later."""
        if self._process is not None:
            self._process.stop()
        for one in slices(self._node):
            self._node.admin.delete(one)


def slices(node: Node) -> list[Object]:
    """What the driver publishes of its devices."""
    found = node.admin.list(_RESOURCES, "ResourceSlice")
    return [one for one in found if one["spec"]["driver"] == DRIVER]


def device_class(name: str = DRIVER) -> Object:
    """The class of all the driver's devices."""
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    kind = {"apiVersion": _RESOURCES, "kind": "DeviceClass"}
    return {**kind, "metadata": {"name": name}, "spec": {"selectors": selectors}}


def claims(node: Node, namespace: str) -> dict[str, list[str]]:
    """Devices by the pod that they are reserved for; none for a pod whose claim has no devices yet."""
    found = {}
    for claim in node.admin.list(_RESOURCES, "ResourceClaim", namespace):
        results = claim["status"].get("allocation", {}).get("devices", {}).get("results", [])
        found[claim["metadata"]["ownerReferences"][0]["name"]] = sorted(one["device"] for one in results)
    return found


def seen(node: Node, namespace: str, pod: str, container: str) -> list[str]:
    """The devices that the driver's file in a container names; none where it has no such file."""
    said = node.kubectl("exec", pod, "-c", container, "--", "cat", _SEEN, namespace=namespace, check=False)
    if said.returncode:
        return []
    (request,) = json.loads(said.stdout)["requests"]
    assert {(one["driver"], one["pool"]) for one in request["devices"]} == {(DRIVER, NODE)}
    return sorted(one["name"] for one in request["devices"])


def marks(node: Node, namespace: str, pod: str, container: str) -> list[str]:
    """The driver's variables in the environment of a container's first process: one a claim."""
    command = ("exec", pod, "-c", container, "--", "cat", "/proc/1/environ")
    said = node.kubectl(*command, namespace=namespace).stdout
    return [line for line in said.split("\0") if line.startswith("claim_")]


def prepared(node: Node) -> set[str]:
    """The files by which the driver tells containerd of a claim's devices."""
    return {name for name in node.inside("ls", "/run/cdi").split() if name.startswith(f"{DRIVER}-")}


def import_waiting_image(node: Node, directory: Path) -> None:
    """Puts an image on the node whose `areal-launch` only waits."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise MissingTool("busybox (static) is not installed: run `make k8s-tools`")
    program, archive = directory / "areal-launch", directory / "waiting.tar"
    program.write_text(_WAITS)
    files = {"/bin/busybox": Path(busybox), "/bin/areal-launch": program}
    links = {f"/bin/{applet}": "busybox" for applet in ("cat", "sh", "sleep")}
    write_image(archive, WAITING_IMAGE, files, links=links, entry=["/bin/areal-launch"])
    ctr = (tool("ctr"), "--address", "/run/areal-containerd.sock", "--namespace", "k8s.io")
    node.inside(*ctr, "images", "import", "--local", str(archive))


def give_runtime(node: Node, namespace: str, selector: str) -> None:
    """A runtime of the namespace: the chart's for CPUs, but that trainers and servers claim devices, and wait.

    The servers' engine has a container of its own. Nobody asks the waiting containers for their health.
    """
    shared = node.admin.get(API, "ClusterRLRuntime", "", "areal-cpu")
    assert shared is not None
    spec = copy.deepcopy(shared["spec"])
    for role in ("trainer", "generation"):
        main = next(one for one in spec["roles"][role]["template"]["spec"]["containers"] if one["name"] == "main")
        main |= {"image": WAITING_IMAGE, "startupProbe": None, "livenessProbe": None}
    spec |= {"devices": {"deviceClass": DRIVER, "selectors": [selector]}, "engineImage": WAITING_IMAGE}
    metadata = {"namespace": namespace, "name": RUNTIME}
    node.admin.create({"apiVersion": API, "kind": "RLRuntime", "metadata": metadata, "spec": spec})


def await_free(node: Node, namespace: str) -> None:
    """Returns when no claim of the namespace is left."""
    eventually(lambda: not node.admin.list(_RESOURCES, "ResourceClaim", namespace), "no claim is left", timeout_s=120)
