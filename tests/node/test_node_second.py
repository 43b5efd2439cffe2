"""Two machines, a volume that only the first can mount, and a bucket: servers on the second, which loses its power."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from areal.record.episode_ends import read_counts
from kube.harness.client import Object
from kube.harness.processes import eventually
from kube.harness.tools import ROOT
from node.harness.jobs import INFRASTRUCTURE, Job
from node.harness.node import Node
from node.harness.second import NAME, POOL, SecondNode
from node.harness.stores import give_secret, listed
from support.s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.kube_node, pytest.mark.nightly, pytest.mark.timeout(1800)]

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
STEPS = 24
SHORT = (
    "algorithm.batchSize=16",
    "rollout.maxConcurrentRollouts=48",
    "evaluation.rows=50",
    "checkpoint.intervalSteps=4",
    f"algorithm.maxSteps={STEPS}",
    f"evaluation.intervalSteps={STEPS // 2}",
)


@pytest.fixture
def second(node: Node) -> Iterator[SecondNode]:
    machine = SecondNode(node)
    machine.start()
    yield machine
    machine.stop()


def test_servers_run_where_the_volume_is_not_and_their_machine_is_lost(
    node: Node, installed: None, room: str, digits: Path, tmp_path: Path, second: SecondNode, server: S3Server
) -> None:
    told = yaml.safe_load(QUICKSTART.read_text())
    data = server.root / "data" / BUCKET
    shutil.copytree(ROOT / "runs" / "digits-sft" / "model", data / "start")
    for name in ("train", "heldout"):
        shutil.copy(ROOT / "data" / "digits" / f"{name}.jsonl", data)
    give_secret(node, room, server)
    told["spec"]["model"] = {"uri": f"s3://{BUCKET}/start"}
    told["spec"]["dataset"] = {
        "train": {"jsonl": f"s3://{BUCKET}/train.jsonl"},
        "evaluation": {"jsonl": f"s3://{BUCKET}/heldout.jsonl"},
    }
    stored = {"store": f"s3://{BUCKET}/jobs", "storeSecret": "store"}
    told["spec"]["storage"] = {"accessMode": "ReadWriteOnce", **stored}
    told["spec"]["weightSync"] = {"servers": "Fetch"}
    told["spec"]["podTemplate"] = {
        "generation": {
            "nodeSelector": {POOL: "spot"},
            "tolerations": [{"key": POOL, "operator": "Equal", "value": "spot", "effect": "NoSchedule"}],
        }
    }
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump(told))
    job = Job.submit(node, room, file, *SHORT)
    reached = job.await_step(4, timeout_s=600)

    nodes = {role: {pod["spec"]["nodeName"] for pod in job.pods(role)} for role in ("generation", "trainer", "weights")}
    assert nodes == {"generation": {NAME}, "trainer": {"node-0"}, "weights": {"node-0"}}
    pod = job.pods("generation")[0]
    claims = [volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert [volume["name"] for volume in claims] == ["env"], "it mounts the tests' Python alone"

    uid = pod["metadata"]["uid"]
    second.power_off()
    eventually(lambda: not second.ready(), "the loss is seen", timeout_s=180, every_s=1)
    eventually(lambda: job.condition("GenerationReady").get("status") != "True", "it is told", timeout_s=180, every_s=1)
    second.start()
    job.await_replaced("generation", uid)
    assert job.await_step(reached + 4, timeout_s=600) >= reached + 4
    status = job.await_end(timeout_s=900)

    audit = status["audit"]
    assert audit["ok"] is True, audit
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert not INFRASTRUCTURE & audit["tombstones"].keys()
    assert status["progress"]["step"] == STEPS
    assert status["attempts"]["epoch"] == 1, "the trainer never stopped for it"
    name = f"{room}/digits-{job.run_dir().name.removeprefix('digits-')[:8]}"
    assert {"summary.json", "model/config.json"} <= listed(server, name).keys(), "the run is in the store, too"
    assert not (job.run_dir() / "fetched").exists()


def test_surge_servers_are_on_the_spot_machine_and_leave_with_a_notice_and_nothing_is_lost(
    node: Node, installed: None, room: str, digits: Path, tmp_path: Path, second: SecondNode
) -> None:
    told = yaml.safe_load(QUICKSTART.read_text())
    told["spec"]["storage"] = {"accessMode": "ReadWriteOnce"}
    told["spec"]["weightSync"] = {"servers": "Fetch"}
    spot = [{"key": POOL, "operator": "Equal", "value": "spot", "effect": "NoSchedule"}]
    told["spec"]["podTemplate"] = {"surge": {"nodeSelector": {POOL: "spot"}, "tolerations": spot}}
    file = tmp_path / "surge.yaml"
    file.write_text(yaml.safe_dump(told))
    bounds = ("replicas=3", "elastic.minReplicas=1", "elastic.maxReplicas=3", "elastic.windowSeconds=86400")
    length = ("algorithm.maxSteps=60", "evaluation.intervalSteps=30")
    job = Job.submit(node, room, file, *SHORT, *length, *(f"generation.{bound}" for bound in bounds))
    job.await_step(2, timeout_s=600)

    def servers() -> dict[str, str]:
        """Machines of the servers that answer, by name."""
        ready = [pod for pod in job.pods("generation") if _answers(pod)]
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in ready}

    whole = {"digits-generation-0": "node-0", "digits-surge-1024": NAME, "digits-surge-1025": NAME}
    eventually(lambda: servers() == whole, "all servers answer", timeout_s=300, every_s=1)
    before = fates(job)

    notice = ("aws-node-termination-handler/spot-itn", "2m", "NoExecute")
    node.kubectl("taint", "node", NAME, f"{notice[0]}={notice[1]}:{notice[2]}")
    own = {"digits-generation-0": "node-0"}
    eventually(lambda: servers() == own, "the spot servers have left", timeout_s=180, every_s=1)
    step = job.step
    assert job.await_step(step + 3, timeout_s=300) >= step + 3, "the fleet's own server goes on alone"
    later = fates(job)
    print({fate: later[fate] - count for fate, count in before.items()})
    assert later["lost"] == before["lost"], "a server that has notice hands all its tokens on"
    assert job.status["summary"] == "Running"
    assert job.condition("Scheduled")["reason"] == "Unschedulable"
    node.kubectl("taint", "node", NAME, f"{notice[0]}-")
    eventually(lambda: servers() == whole, "they are back", timeout_s=300, every_s=1)

    fewer = '{"spec": {"generation": {"elastic": {"windowSeconds": 10}}}}'
    node.kubectl("patch", "rljob", "digits", "-n", room, "--type", "merge", "-p", fewer)
    eventually(lambda: len(servers()) < 3, "the fleet shrinks to what training takes", timeout_s=300, every_s=1)
    assert "digits-generation-0" in servers(), "surge servers go first"
    status = job.await_end(timeout_s=1200)

    audit = status["audit"]
    assert audit["ok"] is True, audit
    assert (audit["lost"], audit["duplicated"]) == (0, 0)
    assert status["progress"]["step"] == 60
    assert status["attempts"]["epoch"] == 1, "the trainer never stopped for it"
    print(job.summary()["tokens"])


def fates(job: Job) -> dict[str, int]:
    """The controller's counts of tokens by fate, as its journal has them now."""
    return dict(read_counts(job.run_dir() / "journal"))


def _answers(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
