"""What outlives a job on a real API server; and submit, pull and delete by who may read no runtimes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.cli.main import app
from areal.errors import ConfigError
from areal.plan.cluster_names import LABEL_RUN
from areal_operator.job_commands import find_job
from areal_operator.submit import fetch
from areal_operator.submit.cluster import Cluster, MissingRight, connect
from areal_operator.submit.manifests import RECEIVE
from areal_operator.submit.submit import SubmitRequest, submit
from areal_operator.submit.temporary_pod import runtime_of
from kube.harness import tools
from kube.harness.client import Client
from kube.harness.control_plane import ControlPlane
from kube.harness.processes import eventually
from kube.jobs import condition, read, rljob, wait_for
from kube.operators import CHART, Operator, children
from submit.submit_parts import GIVER, job_in, quietly, receiving, running
from typer.testing import CliRunner

pytestmark = [pytest.mark.kube_api, pytest.mark.timeout(300), pytest.mark.usefixtures("operator")]


@pytest.fixture(scope="module")
def roles(ground: Any, admin: Client) -> None:
    """The chart's roles for people, and no right to read the cluster's runtimes for anybody."""
    rendered = tools.helm(
        None, "template", "areal", str(CHART), "-f", str(CHART / "ci" / "cpu-values.yaml"), "-s",
        "templates/rbac-users.yaml", "--set-json=rbac.runtimeReaders=[]",
        namespace="areal-system",
    ).stdout  # fmt: skip
    for obj in yaml.safe_load_all(rendered):
        if obj:
            admin.apply(obj)


@pytest.fixture
def editor(control_plane: ControlPlane, admin: Client, namespace: str, roles: None) -> Path:
    """The kubeconfig of somebody who has the role `edit` in the namespace, and nothing else."""
    admin.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "editors", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": f"ed-{namespace}"}],
        }
    )
    made = control_plane.as_user(f"ed-{namespace}")

    def may() -> bool:
        try:
            connect(made, None).all_of("RLJob", namespace)
        except ConfigError:
            return False
        return True

    eventually(may, "the aggregated roles")
    return made


def claim(admin: Client, namespace: str) -> dict[str, Any] | None:
    return admin.get("v1", "PersistentVolumeClaim", namespace, "tiny-run")


def areal(*words: str, code: int = 0) -> str:
    told = CliRunner().invoke(app, words)
    assert told.exit_code == code, (told.output, told.exception)
    return told.output


def gone(admin: Client, namespace: str) -> None:
    """The job is deleted, and what it owned has been collected."""
    admin.delete(read(admin, namespace))
    eventually(lambda: "ConfigMap/tiny-runtime" not in children(admin, namespace), "what it owned is gone")


def reading(volume: Path, seen: list[Any], admin: Client) -> Callable[..., Any]:
    """Programs of pods, which read a directory of this machine."""

    @contextmanager
    def program(namespace: str, pod: str, container: str, command: list[str]) -> Iterator[Any]:
        seen.append(admin.get("v1", "Pod", namespace, pod))
        with running(GIVER, str(volume), *command[4:]) as channel:
            yield channel

    return program


def test_a_complete_run_outlives_its_job_is_listed_pulled_and_deleted_by_an_editor(
    admin: Client, namespace: str, editor: Path, tmp_path: Path
) -> None:
    where = ["-n", namespace, "--kubeconfig", str(editor)]
    admin.create(rljob(namespace, algorithm={"maxSteps": 2}))
    job = wait_for(admin, namespace, Complete="True")
    uid = job["metadata"]["uid"]
    eventually(
        lambda: (claim(admin, namespace) or {})["metadata"].get("labels", {}).get(LABEL_RUN) == uid, "it is kept"
    )
    (row,) = json.loads(areal("jobs", "--kept", "--json", *where))
    assert (row["claim"], row["run"], row["job"]) == ("tiny-run", f"tiny-{uid[:8]}", "there")
    titles, line = areal("jobs", *where).splitlines()
    assert titles.split()[:3] == ["job", "status", "step"]
    assert line.split()[:3] == ["tiny", "Complete", "2/2"]
    assert line.split()[4:7] == ["0", "0.0", "-"], "on CPUs it held no GPU"
    areal("jobs", "--kept", "--delete", "tiny-run", "--yes", *where, code=1)
    gone(admin, namespace)
    only = {"PersistentVolumeClaim/tiny-run"}
    eventually(lambda: set(children(admin, namespace)) == only, "the claim alone is left", timeout_s=60)
    (row,) = json.loads(areal("jobs", "--kept", "--json", *where))
    assert (row["size"], row["job"]) == ("2Gi", "gone")

    volume = tmp_path / "volume"
    (volume / "model").mkdir(parents=True)
    (volume / "model" / "config.json").write_text("{}")
    seen: list[Any] = []
    cluster, found = find_job("tiny", namespace, editor, None, kept=True)
    assert fetch.pull(found, cluster, ["model"], tmp_path / "here", print, reading(volume, seen, admin)) == 1
    assert (tmp_path / "here" / "model" / "config.json").read_text() == "{}"
    (pod,) = seen
    assert "ownerReferences" not in pod["metadata"], "with one that is gone it would be collected"
    (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == "run"]
    assert (mount["subPath"], mount["readOnly"]) == (f"rljobs/tiny-{uid[:8]}", True)
    assert admin.get("v1", "Pod", namespace, pod["metadata"]["name"]) is None

    admin.create(rljob(namespace, algorithm={"maxSteps": 2}))
    again = wait_for(admin, namespace, Accepted="False")
    assert "areal jobs --kept --delete tiny-run" in condition(again, "Accepted")["message"]
    assert (claim(admin, namespace) or {})["metadata"]["labels"][LABEL_RUN] == uid, "not the next job's"
    told = areal("jobs", "--kept", "--delete", "tiny-run", "--yes", *where)
    assert "2Gi" in told
    assert f"tiny-{uid[:8]}" in told
    wait_for(admin, namespace, Complete="True")


@pytest.mark.parametrize(("retain", "stays"), [("Delete", False), ("Model", False), ("All", True)])
def test_of_a_job_that_is_deleted_while_it_trains_stays_what_the_field_says(
    admin: Client, namespace: str, retain: str, stays: bool
) -> None:
    admin.create(rljob(namespace, storage={"retain": retain}))
    wait_for(admin, namespace, Progressing="True")
    uid = read(admin, namespace)["metadata"]["uid"]
    gone(admin, namespace)
    if stays:
        assert (claim(admin, namespace) or {})["metadata"]["labels"][LABEL_RUN] == uid
    else:
        eventually(lambda: claim(admin, namespace) is None, "the claim is gone, too")


def test_the_field_may_change_while_the_job_trains(admin: Client, namespace: str, editor: Path) -> None:
    admin.create(rljob(namespace))
    wait_for(admin, namespace, Progressing="True")
    uid = read(admin, namespace)["metadata"]["uid"]
    areal("set", "rljob/tiny", "storage.retain=All", "-n", namespace, "--kubeconfig", str(editor))
    eventually(lambda: "ownerReferences" not in (claim(admin, namespace) or {})["metadata"], "it has no owner")
    gone(admin, namespace)
    assert (claim(admin, namespace) or {})["metadata"]["labels"][LABEL_RUN] == uid


@pytest.fixture
def send(editor: Path, namespace: str, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Submits the job of `tmp_path` as the editor; what its pod gets is in tmp_path/volume."""

    def sent(*overrides: str, says: list[str] | None = None) -> dict[str, Any]:
        def local(namespace: str, pod: str, container: str, command: list[str]) -> Any:
            assert (pod, command) == ("digits-upload", RECEIVE)
            return receiving(tmp_path / "volume")

        request = SubmitRequest(job_in(tmp_path, *overrides), tmp_path, namespace, "custom")
        return submit(request, connect(editor, None), quietly, [].append if says is None else says.append, local)

    return sent


def test_who_may_not_read_runtimes_submits_all_the_same(
    send: Any, admin: Client, namespace: str, editor: Path, operator: Operator, tmp_path: Path
) -> None:
    cluster: Cluster = connect(editor, None)
    with pytest.raises(MissingRight, match="clusterrlruntimes"):
        runtime_of(job_in(tmp_path), namespace, cluster)
    says: list[str] = []
    job = send("algorithm.maxSteps=2", says=says)
    assert any("suspended until its files are there" in text for text in says)
    assert not job["spec"].get("suspend"), "it goes on by itself"
    assert (tmp_path / "volume" / job["spec"]["model"]["uri"].removeprefix("pvc://digits-run/")).is_dir()
    recipe = admin.get("v1", "ConfigMap", namespace, "digits-recipe")
    assert recipe is not None
    assert [owner["uid"] for owner in recipe["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    again: list[str] = []
    assert send("algorithm.maxSteps=2", says=again)["metadata"]["uid"] == job["metadata"]["uid"]
    assert not any("suspended" in text for text in again), "one that is there isn't suspended"
    wait_for(admin, namespace, "digits", Complete="True")


def test_what_the_operator_refuses_is_told_to_who_may_not_read_runtimes(
    send: Any, namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("areal_operator.submit.submit._WAIT_S", 10.0)
    with pytest.raises(ConfigError, match="there is no ClusterRLRuntime absent"):
        send("runtimeRef.name=absent")
    assert not (tmp_path / "volume").exists(), "nothing was sent"


def test_a_submission_refuses_a_claim_that_outlived_an_earlier_job_before_anything_is_sent(
    send: Any, admin: Client, namespace: str, tmp_path: Path
) -> None:
    labels = {LABEL_RUN: "earlier", "areal.dev/rljob": "digits"}
    metadata = {"name": "digits-run", "namespace": namespace, "labels": labels}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    admin.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
    with pytest.raises(ConfigError, match="holds an earlier run of digits") as caught:
        send()
    assert "storage.claimName=digits-run" in caught.value.fix
    assert read(admin, namespace, "digits") == {}
    assert not (tmp_path / "volume").exists()
    send("storage.claimName=digits-run")
    kept = admin.get("v1", "PersistentVolumeClaim", namespace, "digits-run")
    assert kept is not None
    assert kept["metadata"]["labels"][LABEL_RUN] == "earlier"
    assert "ownerReferences" not in kept["metadata"], "shared on purpose"
