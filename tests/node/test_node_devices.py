"""Devices that pods claim of a DeviceClass: a driver on a real kubelet prepares them, and containers see their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import yaml
from kube.harness.client import Object
from kube.harness.processes import eventually
from node.harness.devices import (
    DRIVER,
    RUNTIME,
    DeviceDriver,
    await_free,
    claims,
    device_class,
    give_runtime,
    import_waiting_image,
    marks,
    prepared,
    seen,
)  # fmt: skip
from node.harness.jobs import Job
from node.harness.node import Node
from node.test_node_jobs import QUICKSTART

pytestmark = [pytest.mark.kube_node, pytest.mark.nightly, pytest.mark.timeout(1800)]

MODELS = ("large", "small", "large", "large", "large")
LARGE = f'device.attributes["{DRIVER}"].model == "large"'
SMALL = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
HOLDERS = {"trainer": "main", "generation": "engine"}  # by role the container that has the claim


@pytest.fixture
def classed(node: Node, installed: None, room: str, tmp_path: Path) -> Iterator[Object]:
    """The class of the driver's devices, and a runtime of the namespace that claims large ones of it."""
    import_waiting_image(node, tmp_path)
    made = node.admin.create(device_class())
    give_runtime(node, room, LARGE)
    yield made
    node.admin.delete(made)


@pytest.fixture
def driver(node: Node, room: str, classed: Object) -> Iterator[DeviceDriver]:
    """The driver, with five devices, one of which is small; it ends after the pods that it has to unprepare."""
    one = DeviceDriver(node, MODELS)
    one.start()
    yield one
    node.kubectl("delete", "rljobs", "--all", namespace=room, timeout_s=180)
    await_free(node, room)
    one.stop()


def submitted(node: Node, room: str, directory: Path, name: str = "digits", servers: int = 1) -> Job:
    """A job whose trainer has two GPUs, and each of its servers one."""
    told = yaml.safe_load(QUICKSTART.read_text())
    told["metadata"]["name"] = name
    told["spec"] |= {
        "runtimeRef": {"kind": "RLRuntime", "name": RUNTIME},
        "trainer": {"gpus": 2},
        "generation": {"replicas": servers, "engine": {"type": "sglang", "gpus": 1}},
    }
    told["spec"]["podTemplate"] = {role: {"resources": SMALL} for role in HOLDERS}  # `areal submit` gives them more
    file = directory / f"{name}.yaml"
    file.write_text(yaml.safe_dump(told))
    return Job.submit(node, room, file)


def running(job: Job, role: str, pods: int) -> list[Object]:
    """A role's pods, once so many run."""

    def there() -> list[Object]:
        found = [pod for pod in job.pods(role) if pod["status"]["phase"] == "Running"]
        assert len(found) == pods, job.picture()
        return found

    return eventually(there, f"{pods} pods of {role} run", timeout_s=300, every_s=1)


def given(job: Job, servers: int) -> dict[str, list[str]]:
    """Devices by pod, once all run: those of each pod's claim, which its container sees and no other container does."""
    found = {}
    for role, pods in (("trainer", 1), ("generation", servers)):
        for name in [pod["metadata"]["name"] for pod in running(job, role, pods)]:
            where = (job.node, job.namespace, name)
            found[name] = seen(*where, HOLDERS[role])
            (mark,) = marks(*where, HOLDERS[role])
            assert mark.startswith(f"claim_{name.replace('-', '_')}_gpus_"), mark
            if role == "generation":
                assert (seen(*where, "main"), marks(*where, "main")) == ([], [])
    told = claims(job.node, job.namespace)
    assert {name: told[name] for name in found} == found
    return found


def waiting(job: Job, words: str) -> str:
    """The pod that a job has no machine for, by these words of the scheduler's."""

    def said() -> str:
        scheduled = job.condition("Scheduled")
        assert scheduled.get("reason") == "Unschedulable", job.picture()
        assert words in scheduled["message"]
        return str(scheduled["message"]).partition(":")[0]

    return eventually(said, "it says that it waits", timeout_s=300, every_s=1)


def fix(job: Job, directory: Path) -> str:
    """What `areal why` advises."""
    return str(json.loads(job.asked("why", "--json", cwd=directory))["fix"])


def test_pods_see_the_devices_that_they_claimed_and_the_next_job_gets_them(
    node: Node, room: str, digits: Path, driver: DeviceDriver, tmp_path: Path
) -> None:
    left = prepared(node)  # by a driver that was killed: this one doesn't know what it prepared
    job = submitted(node, room, tmp_path, servers=2)
    first = given(job, 2)
    counts = {pod: len(devices) for pod, devices in first.items()}
    assert counts == {"digits-trainer-0": 2, "digits-generation-0": 1, "digits-generation-1": 1}
    assert sorted(chain(*first.values())) == ["gpu-0", "gpu-2", "gpu-3", "gpu-4"], "each once, and not the small one"
    assert len(prepared(node) - left) == 3
    eventually(lambda: job.status["usage"]["gpus"] == 4, "all of them are counted")

    later = submitted(node, room, tmp_path, "later")
    assert waiting(later, "cannot allocate all claims") in ("later-trainer-0", "later-generation-0")
    assert later.status.get("usage", {}).get("gpus", 0) == 0
    assert "kubectl get resourceslices" in fix(later, tmp_path)

    node.kubectl("delete", "rljob", job.name, namespace=room, timeout_s=180)
    second = given(later, 1)
    assert {pod: len(devices) for pod, devices in second.items()} == {"later-trainer-0": 2, "later-generation-0": 1}
    assert set(chain(*second.values())) < set(chain(*first.values()))
    node.kubectl("delete", "rljob", later.name, namespace=room, timeout_s=180)
    await_free(node, room)
    eventually(lambda: prepared(node) <= left, "nothing stays prepared")


def test_a_driver_that_dies_hurts_no_running_pod_and_prepares_others_when_it_is_back(
    node: Node, room: str, digits: Path, driver: DeviceDriver, tmp_path: Path
) -> None:
    job = submitted(node, room, tmp_path)
    before = given(job, 1)
    (trainer,) = running(job, "trainer", 1)
    driver.kill()
    (server,) = job.pods("generation")
    node.admin.delete(server)
    eventually(lambda: ended(node, room, server["metadata"]["name"]), "the server's containers ended", timeout_s=180)
    assert not job.pods("generation"), "a pod that nobody unprepares is not gone, and its place not free"
    driver.start()
    eventually(lambda: job.pods("generation"), "another server", timeout_s=180)
    after = given(job, 1)
    assert after["digits-trainer-0"] == before["digits-trainer-0"]
    (same,) = running(job, "trainer", 1)
    assert same["metadata"]["uid"] == trainer["metadata"]["uid"]
    assert [state["restartCount"] for state in same["status"]["containerStatuses"]] == [0]


def ended(node: Node, namespace: str, pod: str) -> bool:
    """Whether all containers of a pod that is still there have ended."""
    found = node.admin.get("v1", "Pod", namespace, pod)
    assert found is not None, f"{pod} is gone"
    return all("terminated" in state["state"] for state in found["status"]["containerStatuses"])


def test_a_job_says_that_its_class_has_no_devices_or_is_not_there(
    node: Node, room: str, digits: Path, classed: Object, tmp_path: Path
) -> None:
    job = submitted(node, room, tmp_path)
    waiting(job, "cannot allocate all claims")
    assert "kubectl get resourceslices" in fix(job, tmp_path)
    node.admin.delete(classed)
    other = submitted(node, room, tmp_path, "other")
    waiting(other, f"device class {DRIVER} does not exist")
    assert "install the driver" in fix(other, tmp_path)
