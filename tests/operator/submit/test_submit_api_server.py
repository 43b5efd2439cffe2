"""Submitting to a real API server, whose pods are fake: what is there afterwards, and what is refused first."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from areal.errors import ConfigError, ExitCode, InfraError
from areal.spec import job_from_object
from areal.spec.crd import definitions
from areal.spec.runtime import RuntimeSpec
from areal_operator.submit.chaos import JobUnderLosses
from areal_operator.submit.cluster import Cluster, TakenError, connect
from areal_operator.submit.follow import follow
from areal_operator.submit.manifests import RECEIVE, page_pod
from areal_operator.submit.page import page_of
from areal_operator.submit.submit import SubmitRequest, submit
from kube.harness.client import Client
from kube.harness.control_plane import ControlPlane
from kube.harness.processes import eventually
from submit_parts import RECIPE, job_in, quietly, receiving, write_job

pytestmark = pytest.mark.kube_api

API = "areal.dev/v1alpha1"
Object = dict[str, Any]
TOOLS = RuntimeSpec.model_validate(
    {"roles": {"tools": {"template": {"spec": {"containers": [{"name": "main", "image": "none.test/tools:1"}]}}}}}
)


@pytest.fixture(scope="module", autouse=True)
def installed(cluster: Any, kwok: Any) -> None:
    admin = cluster.admin
    for definition in definitions().values():
        admin.apply(definition, manager="areal-crds")
    for name in definitions():

        def established(name: str = name) -> bool:
            found = admin.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name)
            conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", [])}
            return conditions.get("Established") == "True"

        eventually(established, f"{name} served")


@pytest.fixture
def runtime(admin: Client, namespace: str) -> str:
    """The name of a runtime in the namespace."""
    main = {"name": "main", "image": "none.test/tools:1"}
    template = {"spec": {"containers": [main]}}
    made = {
        "apiVersion": API,
        "kind": "RLRuntime",
        "metadata": {"name": "cpu", "namespace": namespace},
        "spec": {"roles": {"tools": {"template": template}}, "storage": {"size": "1Gi"}},
    }
    admin.create(made)
    return "cpu"


@pytest.fixture
def target(cluster: Any) -> Cluster:
    return connect(cluster.kubeconfig, None)


@pytest.fixture
def send(target: Cluster, namespace: str, runtime: str, tmp_path: Path) -> Callable[..., Object]:
    """Submits the job of `tmp_path`; what its pod gets is in tmp_path/volume."""

    def sent(
        *overrides: str, to: Cluster | None = None, says: list[str] | None = None, take_over: bool = False
    ) -> Object:
        job = job_in(tmp_path, f"runtimeRef={{kind: RLRuntime, name: {runtime}}}", *overrides)
        request = SubmitRequest(job, tmp_path, namespace, "custom", take_over)
        said = [] if says is None else says

        def local(namespace: str, pod: str, container: str, command: list[str]) -> Any:
            assert (pod, container, command) == ("digits-upload", "main", RECEIVE)
            return receiving(tmp_path / "volume")

        return submit(request, to or target, quietly, said.append, local)

    return sent


def test_everything_is_there_owned_by_the_job_and_the_pod_is_gone(send, admin, namespace, tmp_path):
    job = send()
    claim = admin.get("v1", "PersistentVolumeClaim", namespace, "digits-run")
    recipe = admin.get("v1", "ConfigMap", namespace, "digits-recipe")
    assert recipe["data"] == {"recipe.py": RECIPE}
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi", "as the runtime says"
    for owned in (claim, recipe):
        assert [owner["uid"] for owner in owned["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert admin.get("v1", "Pod", namespace, "digits-upload") is None
    place = job["spec"]["model"]["uri"].removeprefix("pvc://digits-run/")
    sent = tmp_path / "volume" / place / "config.json"
    assert sent.read_text() == (tmp_path / "model" / "config.json").read_text()


def test_submitting_again_changes_nothing(send, admin, namespace):
    first, says = send(), []
    again = send(says=says)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert "inputs: 5 files, 5 of them there already" in says


def test_other_files_or_another_recipe_are_another_job_and_are_refused_before_anything_is_sent(send, admin, tmp_path):
    send()
    (tmp_path / "model" / "config.json").write_text('{"other": 1}')
    with pytest.raises(ConfigError, match=r"model never changes\. Make a new job"):
        send()
    (tmp_path / "recipe.py").write_text(RECIPE + "\n")
    with pytest.raises(ConfigError, match="was submitted with another recipe") as caught:
        send()
    assert "metadata.name=digits-2" in caught.value.fix
    assert len(list((tmp_path / "volume" / "inputs").glob("model-*"))) == 1


def test_a_recipe_may_hold_any_character(send, admin, namespace, tmp_path):
    write_job(tmp_path)
    (tmp_path / "recipe.py").write_text(text := RECIPE + "# 😀 𝜋\n")
    send()
    assert admin.get("v1", "ConfigMap", namespace, "digits-recipe")["data"]["recipe.py"] == text


def test_a_hot_field_of_a_running_job_is_changed_by_submitting_it(send, admin, namespace):
    send()
    assert send("algorithm.maxSteps=200")["spec"]["algorithm"]["maxSteps"] == 200


def test_a_field_that_others_set_is_kept_unless_it_is_taken_over(send, admin, target, namespace):
    job = send()
    edit = {"apiVersion": API, "kind": "RLJob", "metadata": {"name": "digits", "namespace": namespace}}
    admin.apply({**edit, "spec": {"algorithm": {"maxSteps": 300}}}, manager="kubectl-edit")
    with pytest.raises(TakenError, match="maxSteps is set by kubectl-edit"):
        send()
    target.merge("RLJob", namespace, "digits", {"spec": {"algorithm": {"maxStaleness": 1}}}, manager="areal-set")
    with pytest.raises(TakenError, match="maxStaleness is set by areal-set"):
        send("algorithm.maxStaleness=2")
    assert send(take_over=True)["spec"]["algorithm"]["maxSteps"] == job["spec"]["algorithm"]["maxSteps"]


def test_an_autoscalers_fleet_keeps_its_size(send, admin, namespace):
    send()
    scale = {"apiVersion": API, "kind": "RLJob", "metadata": {"name": "digits", "namespace": namespace}}
    admin.apply({**scale, "spec": {"generation": {"replicas": 7}}}, manager="autoscaler")
    assert send("algorithm.maxSteps=200")["spec"]["generation"]["replicas"] == 7


def test_a_runtime_that_is_not_there_is_named(target, namespace, tmp_path):
    request = SubmitRequest(job_in(tmp_path, "runtimeRef={kind: RLRuntime, name: absent}"), tmp_path, namespace)
    with pytest.raises(ConfigError, match="there is no RLRuntime 'absent'") as caught:
        submit(request, target, quietly, lambda text: None)
    assert "kubectl get rlruntimes" in caught.value.fix


def test_a_namespace_that_is_not_there_is_said(target, tmp_path, admin):
    name = f"only-{tmp_path.name.replace('_', '-')[:20].strip('-')}"
    main = {"containers": [{"name": "main", "image": "none.test/tools:1"}]}
    runtime = {"apiVersion": API, "kind": "ClusterRLRuntime", "metadata": {"name": name}}
    admin.create(runtime | {"spec": {"template": {"spec": main}}})
    try:
        request = SubmitRequest(job_in(tmp_path, f"runtimeRef.name={name}"), tmp_path, "nowhere")
        with pytest.raises(ConfigError, match="there is no namespace 'nowhere'"):
            submit(request, target, quietly, lambda text: None)
    finally:
        admin.delete(runtime)


def test_without_rights_the_server_s_words_and_the_rights_that_are_needed_are_said(
    send, control_plane: ControlPlane
) -> None:
    with pytest.raises(ConfigError, match=r'User "nobody" cannot [a-z]+ resource') as caught:
        send(to=connect(control_plane.as_user("nobody"), None))
    assert "pods/exec" in caught.value.fix


def test_a_node_that_can_t_be_reached_is_said_and_the_pod_goes_all_the_same(
    target, admin, namespace, runtime, tmp_path
):
    request = SubmitRequest(job_in(tmp_path, f"runtimeRef={{kind: RLRuntime, name: {runtime}}}"), tmp_path, namespace)
    # No kubelet is there: its address is refused.
    with pytest.raises(InfraError, match=r"exec/.*/digits-upload/main.*connection refused"):
        submit(request, target, quietly, lambda text: None)
    assert admin.get("v1", "Pod", namespace, "digits-upload") is None
    assert admin.get(API, "RLJob", namespace, "digits") is None


def test_waiting_shows_the_status_and_ends_with_the_job(send, target, admin, namespace):
    job = send()
    shown: list[str] = []
    waited: list[tuple[ExitCode, str]] = []
    waiting = threading.Thread(target=lambda: waited.append(follow(target, job, shown.append)))
    waiting.start()
    eventually(lambda: shown, "the first line")
    for summary, step, complete in (("Running", 3, "False"), ("Complete", 160, "True")):
        condition = {"type": "Complete", "status": complete, "reason": "R", "message": ""}
        condition |= {"lastTransitionTime": "2026-11-21T02:00:00Z", "observedGeneration": 1}
        status = {"summary": summary, "progress": {"step": step, "maxSteps": 160}, "conditions": [condition]}
        admin.patch(job, {"status": status}, subresource="status")
        eventually(lambda summary=summary: any(summary in line for line in shown), summary)
    waiting.join(timeout=60)
    assert waited == [(ExitCode.DONE, "digits is complete")]
    assert "Running  step 3/160" in shown


def test_a_job_that_is_deleted_meanwhile_ends_the_waiting(send, target, admin):
    job = send()
    admin.delete(job)
    assert follow(target, job, lambda text: None) == (ExitCode.CONFIG, "digits was deleted")


class Greeter:
    """What runs in the pod of a page: says its address, and greets who connects to its port."""

    def __init__(self, admin: Client) -> None:
        self.admin = admin
        self.pod: Object = {}
        self.serving = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._greet, daemon=True).start()

    @contextmanager
    def program(self, namespace: str, pod: str, container: str, command: list[str]) -> Iterator[Any]:
        self.pod = self.admin.get("v1", "Pod", namespace, pod)
        self.port = int(command[-1])
        assert command[:3] == ["areal", "view", "/areal/run/digits"]
        yield SimpleNamespace(line=lambda timeout_s: f"http://127.0.0.1:{self.port}/r/digits?key=k".encode())

    def connected(self, namespace: str, pod: str, port: int) -> socket.socket:
        self.reached = (pod, port)
        return socket.create_connection(self.serving.getsockname())

    def _greet(self) -> None:
        while True:
            there, _ = self.serving.accept()
            with there:
                there.sendall(b"hello " + there.recv(100))


def asked(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as near:
        near.sendall(b"you")
        return near.makefile("rb").read()


def test_a_job_without_a_page_is_shown_from_a_pod_that_goes_afterwards(send, target, admin, namespace):
    job, inside = send(), Greeter(admin)
    with page_of(job, target, 0, lambda text: None, inside.program, inside.connected) as address:
        assert address == f"http://127.0.0.1:{inside.port}/r/digits?key=k"
        assert [asked(inside.port) for _ in range(3)] == [b"hello you"] * 3
    name = inside.pod["metadata"]["name"]
    assert inside.reached == (name, inside.port)
    assert [owner["uid"] for owner in inside.pod["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert admin.get("v1", "Pod", namespace, name) is None
    with pytest.raises(ConnectionRefusedError):
        asked(inside.port)


def test_a_job_with_a_page_is_shown_from_its_own_pod(send, target, admin, namespace):
    job, inside = send(), Greeter(admin)
    labels = {"areal.dev/rljob": "digits", "areal.dev/role": "view"}
    pod = page_pod(job_from_object(job), job["metadata"]["uid"], namespace, "digits-run", TOOLS, "own")
    admin.create({**pod, "metadata": {**pod["metadata"], "labels": labels}})

    def ready() -> bool:
        conditions = admin.get("v1", "Pod", namespace, "digits-view-own")["status"].get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    eventually(ready, "the job's own page")
    with page_of(job, target, 0, lambda text: None, inside.program, inside.connected) as address:
        port = urlsplit(address).port
        assert asked(port) == b"hello you"
    assert inside.reached == ("digits-view-own", 8000)
    assert inside.pod == {}, "no other was made"


def test_who_may_make_no_pods_sees_no_page_and_hears_which_right_is_missing(send, admin, control_plane, namespace):
    job = send()
    with (
        pytest.raises(ConfigError, match='User "nobody" cannot') as caught,
        page_of(job, connect(control_plane.as_user("nobody"), None), 0, lambda text: None),
    ):
        pass
    assert "pods" in caught.value.message + caught.value.fix


@pytest.fixture
def training(send: Any, admin: Client, namespace: str) -> Iterator[Callable[[str], None]]:
    """A job with two workers and a server that makes ten steps a second; ends with the condition that is told.

    Without the roles in whose pods other tests of this API server have something running.
    """
    job, over, sets = send(), threading.Event(), []
    restricted = page_pod(job_from_object(job), job["metadata"]["uid"], namespace, "digits-run", TOOLS, "own")
    restricted["spec"].pop("activeDeadlineSeconds", None)
    for role, replicas in (("worker", 2), ("generation", 1)):
        labels = {"areal.dev/rljob": "digits", "areal.dev/role": role}
        pod = {"metadata": {"labels": labels}, "spec": {**restricted["spec"], "restartPolicy": "Always"}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod, "serviceName": role}
        metadata = {"name": f"digits-{role}", "namespace": namespace}
        sets.append({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec})
        admin.create(sets[-1])

    def says(**status: Any) -> None:
        admin.patch(job, {"status": status}, subresource="status")

    def train() -> None:
        for step in range(1, 10_000):
            if over.wait(0.1):
                return
            says(progress={"step": step, "maxSteps": 10_000})

    def end(condition: str) -> None:
        moment = {"lastTransitionTime": "2030-01-01T00:00:00Z", "observedGeneration": 1}
        says(conditions=[{"type": condition, "status": "True", "reason": "Told", "message": "", **moment}])

    thread = threading.Thread(target=train)
    thread.start()
    yield end
    over.set()
    thread.join()
    for each in sets:
        admin.delete(each)


def uids(admin: Client, namespace: str, role: str) -> set[str]:
    """Of the role's pods that are ready."""
    found = set()
    for pod in admin.list("v1", "Pod", namespace, f"areal.dev/rljob=digits,areal.dev/role={role}"):
        held = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", ())}
        if held.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
            found.add(pod["metadata"]["uid"])
    return found


def test_pods_of_a_job_are_lost_one_after_another_and_each_loss_is_timed(
    training, target, admin, namespace, monkeypatch
):
    monkeypatch.setattr("areal_operator.submit.chaos._SPREAD_S", 0.1)
    hurt, told = JobUnderLosses(target, namespace, "digits"), []
    eventually(lambda: len(uids(admin, namespace, "worker")) == 2, "two workers")
    eventually(lambda: uids(admin, namespace, "generation"), "a server")
    with pytest.raises(ConfigError, match="'redis' is ready in digits") as caught:
        hurt.lose(["redis"], times=1, seed=0, tell=told.append)
    assert "generation, worker" in caught.value.fix
    before = uids(admin, namespace, "worker"), uids(admin, namespace, "generation")
    costs = hurt.lose(["worker"], times=2, seed=3, tell=told.append)
    assert costs == told
    assert [(cost.role, cost.kind, cost.recovered) for cost in costs] == [("worker", "pod lost", True)] * 2
    for cost in costs:
        assert 0 < cost.detected <= cost.replaced < cost.new_step
    after = uids(admin, namespace, "worker")
    assert len(after) == 2
    assert after != before[0], "pods are gone"
    assert uids(admin, namespace, "generation") == before[1], "of no other role"


def test_losses_end_with_the_job(training, target, admin, namespace, monkeypatch):
    monkeypatch.setattr("areal_operator.submit.chaos._SPREAD_S", 0.1)
    eventually(lambda: uids(admin, namespace, "generation"), "a server")
    with pytest.raises(InfraError, match="the job ended meanwhile"):
        JobUnderLosses(target, namespace, "digits").lose([], times=100, seed=0, tell=lambda cost: training("Complete"))


def test_a_job_without_pods_has_none_to_lose(send, target, namespace):
    send()
    with pytest.raises(ConfigError, match="no pod of digits is ready"):
        JobUnderLosses(target, namespace, "digits").lose([], times=1, seed=0, tell=print)
