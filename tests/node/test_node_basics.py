"""The node itself: what a cluster promises to pods holds on it."""

from __future__ import annotations

from typing import Any

import pytest
from kube.harness.client import Refused
from kube.harness.processes import eventually
from node.harness.builds import Builder
from node.harness.node import Node
from node.harness.pods import USER, await_pods, pod, pod_spec

pytestmark = pytest.mark.kube_node


def apply_gang(node: Node, namespace: str) -> None:
    """Two web servers as a Parallel StatefulSet, with a headless and a common Service."""
    labels = {"app": "gang"}
    serve = "hostname > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
    spec = pod_spec(["sh", "-c", serve])
    spec["containers"][0]["readinessProbe"] = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    port = {"name": "http", "port": 8080, "protocol": "TCP"}
    headless = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels, "ports": [port]}
    web = {"selector": labels, "ports": [{**port, "port": 80, "targetPort": 8080}]}
    services: dict[str, dict[str, Any]] = {"gang": headless, "web": web}
    for name, service in services.items():
        metadata = {"namespace": namespace, "name": name}
        node.admin.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
    node.admin.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"namespace": namespace, "name": "gang"},
            "spec": {
                "serviceName": "gang",
                "replicas": 2,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
    )
    await_pods(node.admin, namespace, "gang-0", "gang-1")


def ask(node: Node, namespace: str, pod: str, url: str) -> str:
    """What a pod gets from a URL."""
    said = node.kubectl(
        "exec", pod, "--", "timeout", "3", "wget", "-q", "-O", "-", url, namespace=namespace, check=False
    )
    return said.stdout.strip()


def test_pods_find_each_other_by_name_and_through_a_service(node: Node, room: str) -> None:
    apply_gang(node, room)
    peer = f"http://gang-1.gang.{room}.svc:8080/"
    assert eventually(lambda: ask(node, room, "gang-0", peer), "an answer by name", timeout_s=60) == "gang-1"
    answers = {ask(node, room, "gang-0", f"http://web.{room}/") for _ in range(12)}
    assert answers == {"gang-0", "gang-1"}


def test_a_pod_that_may_be_root_is_refused(node: Node, room: str) -> None:
    bold = pod(room, "bold", ["sleep", "60"])
    bold["spec"]["securityContext"] = {}
    with pytest.raises(Refused, match="violates PodSecurity"):
        node.admin.create(bold)


def test_claims_bind_to_volumes_that_the_images_user_may_write(node: Node, room: str) -> None:
    node.admin.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"namespace": room, "name": "data"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
    )
    write = ["sh", "-c", "mkdir -p /data/a/b && id -u > /data/a/b/who"]
    node.admin.create(pod(room, "writer", write, claims={"/data": "data"}, restartPolicy="Never"))
    await_pods(node.admin, room, "writer", phase="Succeeded")
    node.admin.create(pod(room, "reader", ["cat", "/data/a/b/who"], claims={"/data": "data"}, restartPolicy="Never"))
    await_pods(node.admin, room, "reader", phase="Succeeded")
    assert node.kubectl("logs", "reader", namespace=room).stdout.strip() == str(USER)


def test_an_image_of_ours_runs_the_mounted_environment(node: Node, room: str, builder: Builder) -> None:
    look = "import areal, torch; print(areal.__file__, torch.ones(2).sum().item())"
    image = builder.reference("trainer")
    command = ["/opt/areal/env/bin/python", "-c", look]
    node.admin.create(pod(room, "python", command, image=image, environment=True, restartPolicy="Never"))
    await_pods(node.admin, room, "python", phase="Succeeded")
    assert node.kubectl("logs", "python", namespace=room).stdout.split() == ["/opt/areal/app/areal/__init__.py", "2.0"]


def test_an_image_as_users_build_it_needs_no_mount(node: Node, room: str, builder: Builder) -> None:
    """The operator of the other tests on this node runs in this image, too."""
    command = ["sh", "-c", "areal --version && ls /opt/areal/env/lib/python3.*/site-packages/areal.pth"]
    node.admin.create(pod(room, "own", command, image=builder.reference("operator"), restartPolicy="Never"))
    await_pods(node.admin, room, "own", phase="Succeeded")
    version, path = node.kubectl("logs", "own", namespace=room).stdout.splitlines()
    assert version.endswith(builder.tag)
    assert path.startswith("/opt/areal/env/")


def test_the_trainers_image_compiles_what_triton_does_and_has_verbs(builder: Builder) -> None:
    """A module of C with Python's headers; the library by which NCCL finds InfiniBand."""
    build = "cc -shared -fPIC $(python3-config --includes) -x c - -o /tmp/a.so"
    compiled = f"echo '#include <Python.h>' | {build} && echo compiled && ldconfig -p | grep -o 'libibverbs.so.1 '"
    assert builder.run_in_stage("trainer", "runtime", ["sh", "-c", compiled]).split() == ["compiled", "libibverbs.so.1"]


def test_a_pod_of_the_runtime_class_runs_in_gvisor(node: Node, room: str, builder: Builder) -> None:
    look = "import grpc, platform; print(platform.release())"
    image = builder.reference("reward")
    command = ["/opt/areal/env/bin/python", "-c", look]
    cell = {"runtimeClassName": "gvisor", "restartPolicy": "Never"}
    node.admin.create(pod(room, "cell", command, image=image, environment=True, **cell))
    await_pods(node.admin, room, "cell", phase="Succeeded")
    assert "gvisor" in node.kubectl("logs", "cell", namespace=room).stdout


@pytest.mark.parametrize("image", ["operator", "services", "worker", "reward", "engine", "sglang", "trainer", "redis"])
def test_every_image_is_for_a_user_without_rights_and_names_its_program(builder: Builder, image: str) -> None:
    config = builder.config(image)
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"][0] in ("areal", "areal-launch")
