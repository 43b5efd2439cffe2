"""Jobs on a real node, as users run them: restricted pods, the chart's own values, this checkout's images."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from kube.harness import tools
from kube.harness.processes import eventually
from kube.harness.tools import ROOT
from node.harness.jobs import INFRASTRUCTURE, Job, applied
from node.harness.node import Node
from node.harness.platform import NAMESPACE, RELEASE, SGLANG_RUNTIME, await_ownership

pytestmark = [pytest.mark.kube_node, pytest.mark.timeout(1800)]

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
ROLES = ("worker", "generation", "reward-custom", "controller", "redis", "trainer")
SHORT = (
    "algorithm.batchSize=16",
    "rollout.maxConcurrentRollouts=48",
    "evaluation.rows=50",
    "checkpoint.intervalSteps=4",
)


def clean(status: dict[str, Any]) -> bool:
    """Whether the audit found every group once, and none given up for the infrastructure's sake."""
    audit = status["audit"]
    lost = audit["lost"] + audit["duplicated"]
    return audit["ok"] is True and lost == 0 and not INFRASTRUCTURE & audit["tombstones"].keys()


def test_local_paths_applied_as_they_are_get_an_answer_that_names_areal_submit(
    node: Node, installed: None, room: str
) -> None:
    applied(node, room, QUICKSTART)
    job = Job(node, room, "digits")
    refused = eventually(lambda: job.condition("Accepted"), "an answer", timeout_s=60)
    assert (refused["status"], refused["reason"]) == ("False", "LocalPath")
    assert "areal submit" in refused["message"]
    assert job.status["summary"] == "Rejected"
    assert node.admin.list("v1", "Pod", room) == []


def test_the_chart_proves_itself(node: Node, installed: None) -> None:
    said = node.helm("test", RELEASE, "--timeout=180s", namespace=NAMESPACE, timeout_s=200).stdout
    assert said.count("Phase:          Succeeded") + said.count("Phase: Succeeded") >= 3, said
    await_ownership(node)


@pytest.mark.nightly
def test_the_quickstart_trains_to_its_bar_while_every_role_loses_its_pod(
    node: Node, installed: None, room: str, digits: Path
) -> None:
    job = Job.submit(node, room, QUICKSTART)
    job.await_step(5, timeout_s=600)
    assert_closed(job)
    known = {role: {pod["metadata"]["uid"] for pod in job.pods(role)} for role in ROLES}
    told = json.loads(job.asked("chaos", "--json", cwd=ROOT, timeout_s=1200))
    assert sorted(row["role"] for row in told["roles"]) == sorted(ROLES)
    for fault in told["faults"]:
        assert 0 < fault["detected"] <= fault["replaced"] < fault["new_step"], fault
    for role, uids in known.items():
        assert not uids & {pod["metadata"]["uid"] for pod in job.pods(role)}, f"{role} is another's"
    status = job.await_end(timeout_s=1200)
    summary = job.summary()
    assert clean(status), status["audit"]
    assert status["progress"]["step"] == 160
    assert status["attempts"]["epoch"] == 2, "the trainer's gang was restarted for its own pod alone"
    assert summary["groups"] == {"trained": 160 * 64, "tombstoned": {}, "lost": 0, "duplicated": 0}
    assert summary["heldOut"]["first"] <= 0.7
    assert summary["heldOut"]["last"] >= 0.9


def assert_closed(job: Job) -> None:
    """Of a running job's pods, those talk that have to, and no others."""
    reward, redis = job.address("reward-custom"), job.address("redis")
    assert job.connects("worker", reward, 9000)
    assert not job.connects("trainer", reward, 9000)
    assert not job.connects("generation", redis, 6379)
    assert not job.connects("reward-custom", "10.96.0.1", 443)


def test_a_short_run_with_stock_sglang_in_the_generation_pods(
    node: Node, installed: None, room: str, digits: Path, tmp_path: Path
) -> None:
    engine = ("generation.engine.type=sglang", f"runtimeRef.name={SGLANG_RUNTIME}")
    job = Job.submit(node, room, QUICKSTART, *SHORT, *engine, "algorithm.maxSteps=4", "evaluation.intervalSteps=4")
    status = job.await_end(timeout_s=600)
    assert clean(status), status["audit"]
    assert status["progress"]["step"] == 4
    report = json.loads(job.asked("audit", "--json", cwd=tmp_path))
    assert (report["trained"], report["lost"], report["duplicated"]) == (4 * 16, 0, 0)
    assert "trainer starts under fence" in job.asked("logs", "--role", "trainer", cwd=tmp_path)
    job.asked("pull", "--model", "--out", str(tmp_path / "here"), cwd=tmp_path)
    assert (tmp_path / "here" / "model" / "config.json").is_file()


def token_with(node: Node, room: str, account: str, *rights: str) -> str:
    """Of a service account with these rights and no other."""
    for command in (
        ("create", "serviceaccount", account),
        ("create", "role", account, "--resource=rljobs.areal.dev", *rights),
        ("create", "rolebinding", account, f"--role={account}", f"--serviceaccount={room}:{account}"),
    ):
        node.kubectl(*command, namespace=room)
    return node.kubectl("create", "token", account, namespace=room).stdout.strip()


@contextmanager
def page_of_jobs(node: Node) -> Iterator[httpx.Client]:
    """The chart's own page, as the notes say one reaches it."""
    where = [tools.tool("kubectl"), f"--kubeconfig={node.kubeconfig}", "-n", NAMESPACE]
    command = [*where, "port-forward", f"service/{RELEASE}-jobs", ":8000", "--address=127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forward:
        assert forward.stdout is not None
        try:
            address = forward.stdout.readline().split()[2]  # Forwarding from 127.0.0.1:PORT -> 8000
            with httpx.Client(base_url=f"http://{address}", timeout=60, follow_redirects=True) as browser:
                yield browser
        finally:
            forward.terminate()


def listed_for_who_may_list_them(node: Node, token: str) -> str:
    """The list of jobs."""
    with page_of_jobs(node) as browser:
        assert browser.post("/login", data={"token": "nonsense"}).status_code == 401
        assert "log in" in browser.get("/", headers={"accept": "text/html"}).text
        return browser.post("/login", data={"token": token}).raise_for_status().text


def shown_to_who_may_get_it(job: Job, token: str) -> str:
    """The page as the job's own pod serves it."""
    with job.page() as address, httpx.Client(base_url=address.rpartition("/r/")[0], timeout=60) as browser:
        assert browser.post("/login", data={"token": "nonsense"}).status_code == 401
        assert browser.get(f"/r/{job.name}/config").status_code == 401
        assert browser.post("/login", data={"token": token}).status_code == 303
        return browser.get(f"/r/{job.name}/config").raise_for_status().text


def shown_from_a_temporary_pod(job: Job) -> str:
    """The page of a run whose pods are gone."""
    with job.page() as address, httpx.Client(timeout=60, follow_redirects=True) as browser:
        assert browser.get(address.partition("?")[0]).status_code == 403
        return browser.get(address).raise_for_status().text


@pytest.mark.nightly  # each landing: a run with SGLang here, pods in gVisor in test_node_reward.py
def test_a_short_run_with_the_reward_pods_in_gvisor_and_a_page(
    node: Node, installed: None, room: str, digits: Path, tmp_path: Path
) -> None:
    told = yaml.safe_load(QUICKSTART.read_text())
    told["metadata"]["name"] = "digits-in-cells"
    told["spec"].pop("recipe")
    told["spec"]["reward"] = {"verifier": "exact"}
    told["spec"]["podTemplate"] = {"reward": {"runtimeClassName": "gvisor"}}
    file = tmp_path / "cells.yaml"
    file.write_text(yaml.safe_dump(told))
    job = Job.submit(
        node, room, file, *SHORT, "algorithm.maxSteps=4", "evaluation.intervalSteps=4", "observability.view=true"
    )
    job.await_step(1, timeout_s=600)
    shown = shown_to_who_may_get_it(job, token_with(node, room, "reader", "--verb=get", f"--resource-name={job.name}"))
    listed = listed_for_who_may_list_them(node, token_with(node, room, "lister", "--verb=list"))
    where = node.kubectl("exec", job.pods("reward")[0]["metadata"]["name"], "--", "uname", "-r", namespace=room)
    status = job.await_end(timeout_s=600)
    assert "gvisor" in where.stdout
    assert clean(status), status["audit"]
    assert status["progress"]["step"] == 4
    assert "digits-in-cells" in shown
    assert f'href="/jobs/{room}/digits-in-cells"' in listed
    eventually(lambda: job.pods("view") == [], "the job's pods are gone", timeout_s=60)
    assert "4 of 4" in shown_from_a_temporary_pod(job)
    assert job.pods("upload") == []


def test_uninstalling_leaves_jobs_to_their_owner_and_nothing_else(node: Node, installed: None) -> None:
    node.helm("uninstall", RELEASE, "--wait", namespace=NAMESPACE, timeout_s=120)
    kinds = "deployments,pods,services,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,jobs,leases"
    cluster = "clusterroles,clusterrolebindings,validatingadmissionpolicies,priorityclasses"
    mine = f"app.kubernetes.io/instance={RELEASE}"

    def left() -> str:
        named = node.kubectl("get", kinds, "-l", mine, "-o", "name", "--all-namespaces").stdout
        return named + node.kubectl("get", cluster, "-l", mine, "-o", "name").stdout

    eventually(lambda: left() == "", "nothing of the release is left", timeout_s=60)
    runtimes = node.kubectl("get", "clusterrlruntimes", "-l", mine, "-o", "name").stdout
    assert runtimes, "jobs that name a runtime go on with it, as they do with the CRDs"
    assert "rljobs.areal.dev" in node.kubectl("get", "crds", "-o", "name").stdout
