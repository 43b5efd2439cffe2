"""The command: what it prints without a cluster, and how it fails without one."""

from __future__ import annotations

import json

import pytest
import yaml
from areal.cli.main import app
from areal.errors import ConfigError, InfraError
from areal.spec import job_from_object
from areal_operator.submit.cluster import api_error, explanation
from areal_operator.submit.follow import ended, line
from areal_operator.submit.temporary_pod import not_started
from submit_parts import RECIPE, write_job
from typer.testing import CliRunner

NOWHERE = """apiVersion: v1
kind: Config
current-context: nowhere
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: me, user: {}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: me}}]
"""


def submit(*arguments: str) -> object:
    return CliRunner().invoke(app, ["submit", *arguments])


def test_a_dry_run_prints_everything_and_needs_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    done = submit(str(write_job(tmp_path)), "algorithm.maxSteps=20", "-n", "team-a", "--dry-run")
    assert done.exit_code == 0
    recipe, claim, job = yaml.safe_load_all(done.output)
    assert recipe["data"] == {"recipe.py": RECIPE}
    assert claim["metadata"] == {**claim["metadata"], "name": "digits-run", "namespace": "team-a"}
    assert job["spec"]["algorithm"]["maxSteps"] == 20
    assert job["spec"]["reward"] == {"verifier": "custom"}, "the recipe defines `reward`"
    assert job["spec"]["model"]["uri"].startswith("pvc://digits-run/inputs/model-")
    job_from_object(job)


def test_a_dry_run_for_scripts_is_one_list(tmp_path):
    done = submit(str(write_job(tmp_path)), "--dry-run", "--json")
    listed = json.loads(done.output)
    assert [one["kind"] for one in listed["items"]] == ["ConfigMap", "PersistentVolumeClaim", "RLJob"]
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")


def test_a_job_that_check_refuses_is_refused_here(tmp_path):
    done = submit(str(write_job(tmp_path)), "algorithm.groupSize=1", "--dry-run")
    assert isinstance(done.exception, ConfigError)
    assert "[group-size]" in str(done.exception)


def test_a_model_of_a_hub_stays_where_it_is(tmp_path):
    done = submit(str(write_job(tmp_path)), "model={uri: hf://Qwen/Qwen3-8B}", "--dry-run")
    assert done.exit_code == 0, done.exception
    *_, job = yaml.safe_load_all(done.output)
    assert job["spec"]["model"] == {"uri": "hf://Qwen/Qwen3-8B"}


def test_without_a_kubeconfig_it_says_how_to_name_one(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    done = submit(str(write_job(tmp_path)))
    assert isinstance(done.exception, ConfigError)
    assert "no cluster to submit to" in done.exception.message
    assert "--kubeconfig" in done.exception.fix


def test_an_unknown_context_is_said(tmp_path):
    (tmp_path / "config").write_text(NOWHERE)
    done = submit(str(write_job(tmp_path)), "--kubeconfig", str(tmp_path / "config"), "--context", "elsewhere")
    assert isinstance(done.exception, ConfigError)
    assert "elsewhere" in done.exception.message


def test_a_cluster_that_does_not_answer_is_named(tmp_path):
    (tmp_path / "config").write_text(NOWHERE)
    done = submit(str(write_job(tmp_path)), "--kubeconfig", str(tmp_path / "config"))
    assert isinstance(done.exception, InfraError)
    assert "no API server answers at http://127.0.0.1:9" in done.exception.message
    assert "kubectl cluster-info" in done.exception.fix


def test_help_shows_examples():
    shown = submit("--help").output
    assert "areal submit job.yaml --dry-run > manifests.yaml" in shown
    assert "--wait" in shown


def status(**fields: object) -> bytes:
    return json.dumps({"kind": "Status", **fields}).encode()


@pytest.mark.parametrize(
    ("code", "body", "says", "fix"),
    [
        (404, b"404 page not found\n", "the cluster knows no RLJob", "helm install areal"),
        (
            404,
            status(message='namespaces "x" not found', details={"kind": "namespaces", "name": "x"}),
            "there is no namespace 'team-a'",
            "kubectl create namespace team-a",
        ),
        (401, status(message="Unauthorized"), "doesn't know who you are", "Log in again"),
        (
            403,
            status(reason="Forbidden", message='User "me" cannot patch resource "rljobs"'),
            'User "me" cannot patch',
            "pods/exec",
        ),
        (422, status(message="spec.model: Invalid value: …"), "spec.model: Invalid value", "Correct what"),
        (
            422,
            status(message="spec.podTemplate[worker].env[0]: Duplicate value"),
            "spec.podTemplate.worker.env[0]: Duplicate",
            "Correct what",
        ),
        (500, b"etcd is down", "answered 500: etcd is down", "Try again"),
    ],
)
def test_a_refusal_says_what_was_asked_and_what_to_do(code, body, says, fix):
    error = explanation(api_error(code, body), "apply RLJob digits", "RLJob", "team-a")
    assert error is not None
    assert error.message.startswith("can't apply RLJob digits") or "there is no namespace" in error.message
    assert says in error.message
    assert fix in error.fix


def test_an_object_that_may_be_absent_is_no_error():
    body = status(message="not found", details={"kind": "pods", "name": "a"})
    assert explanation(api_error(404, body), "read Pod a", "Pod", "team-a", absent_ok=True) is None


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (
            {
                "status": {
                    "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}]
                }
            },
            "ErrImagePull: denied",
        ),
        (
            {"status": {"phase": "Pending", "conditions": [{"status": "False", "message": "0/3 nodes are available"}]}},
            "0/3 nodes are available",
        ),
        (None, "it was deleted"),
    ],
)
def test_a_pod_that_does_not_start_is_explained_in_kubernetes_words(pod, says):
    assert says in not_started("digits-upload", pod).message


def test_a_status_is_one_line_and_an_end_has_its_code():
    from areal.spec.status import JobStatus

    def of(summary: str, **conditions: str) -> JobStatus:
        made = [
            {"type": kind, "status": value, "reason": "Why", "message": "because", "lastTransitionTime": 0}
            | {"observedGeneration": 3}
            for kind, value in conditions.items()
        ]
        progress = {"step": 12, "maxSteps": 160, "policyVersion": 11, "reward": 0.4242}
        return JobStatus.model_validate(
            {"summary": summary, "conditions": made, "progress": progress, "generation": {"replicas": 2}}
        )

    assert line(of("Running")) == "Running  step 12/160  policy 11  reward 0.424  generation 0/2"
    elastic = {"replicas": 3, "readyReplicas": 2, "wanted": 3, "why": "training waited 31% of 300 s: 2 → 3 servers"}
    assert line(JobStatus.model_validate({"generation": elastic})).endswith(
        "generation 2/3 (training waited 31% of 300 s: 2 → 3 servers)"
    )
    assert line(JobStatus()) == "waiting for the operator"
    assert line(of("Starting", Scheduled="False")).endswith("because")
    assert ended("digits", of("Running", Complete="False", Failed="False", Accepted="True"), 3) is None
    assert ended("digits", of("Complete", Complete="True"), 3) == (0, "digits is complete")
    failed = ended("digits", of("Failed", Failed="True"), 3)
    assert failed is not None
    assert failed[0] == 75
    refusal = ended("digits", of("Rejected", Accepted="False"), 3)
    assert refusal == (64, "digits is refused: Why: because")
    assert ended("digits", of("Rejected", Accepted="False"), 4) is None, "the operator has not seen the correction"
