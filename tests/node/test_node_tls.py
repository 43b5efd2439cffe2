"""Pods that speak by TLS alone on a real node: every role, and an agent that calls the policy by HTTPS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kube.harness.processes import eventually
from kube.harness.tools import ROOT
from node.harness.jobs import Job
from node.harness.node import Node
from node.harness.platform import CHART, NAMESPACE, RELEASE
from node.test_node_jobs import SHORT, clean

pytestmark = [pytest.mark.kube_node, pytest.mark.nightly, pytest.mark.timeout(1800)]

STEPS = 12
LOOKS = 'assert base_url.startswith("https://"), base_url'


@pytest.fixture
def encrypted(node: Node, installed: None) -> Iterator[None]:
    """The chart with tls.mode SelfSigned."""
    upgrade = ("upgrade", RELEASE, str(CHART), "--reuse-values", "--wait", "--timeout=180s")
    node.helm(*upgrade, "--set", "tls.mode=SelfSigned", namespace=NAMESPACE, timeout_s=240)
    yield
    node.helm(*upgrade, "--set", "tls.mode=Disabled", namespace=NAMESPACE, timeout_s=240)


def test_an_agent_calls_the_policy_by_https_and_every_role_is_encrypted(
    node: Node, encrypted: None, room: str, digits: Path, tmp_path: Path
) -> None:
    recipe = (ROOT / "examples" / "agent_openai.py").read_text()
    first = '        messages = [{"role": "user", "content": data["prompt"]}]\n'
    assert recipe.count(first) == 1
    (tmp_path / "agent.py").write_text(recipe.replace(first, f"        {LOOKS}\n{first}"))
    told = yaml.safe_load((ROOT / "examples" / "agent_openai.yaml").read_text())
    told["spec"]["recipe"]["file"] = "agent.py"  # beside the job file
    told["spec"]["rollout"]["gateway"] = {"replicas": 1}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(told))
    steps = (f"algorithm.maxSteps={STEPS}", f"evaluation.intervalSteps={STEPS}")
    job = Job.submit(node, room, file, *SHORT, *steps)
    job.await_step(2, timeout_s=600)
    roles = ("controller", "worker", "generation", "redis", "trainer", "gateway")
    for pod in (pod for role in roles for pod in job.pods(role)):
        mounts = [mount["mountPath"] for one in pod["spec"]["containers"] for mount in one.get("volumeMounts", ())]
        assert "/areal/tls" in mounts, pod["metadata"]["name"]
    gateway = job.pods("gateway")[0]["metadata"]["uid"]
    node.admin.delete(job.pods("gateway")[0])
    others = lambda: [pod for pod in job.pods("gateway") if pod["metadata"]["uid"] != gateway]  # noqa: E731
    eventually(others, "another gateway", timeout_s=120)
    status = job.await_end(timeout_s=900)
    assert clean(status), status["audit"]
    assert status["progress"]["step"] == STEPS
