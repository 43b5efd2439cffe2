"""Losses of a machine under a running job on two nodes: what is told, what is replaced, and when training goes on.

    .venv/bin/python bench/node_losses.py --role trainer --cases 12 --seed 1 [--out FILE.jsonl]
    .venv/bin/python bench/node_losses.py --table FILE.jsonl …

Starts a Kubernetes node of its own and a second machine (as `make test` does for its tests on a node; needs root and
`make k8s-tools`), submits the quickstart, and loses the machine that holds the role's pods, again and again: its
power, its link, its kubelet, by a drain, by a notice that it goes, by a reboot. A case's line is written when it is
over. At the end the job is suspended and its run audited. Times are seconds from the loss.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import httpx  # noqa: E402
import yaml  # noqa: E402
from kube.harness.processes import eventually  # noqa: E402
from node.conftest import IMAGES  # noqa: E402
from node.harness import platform  # noqa: E402
from node.harness.basics import basic_images  # noqa: E402
from node.harness.builds import Builder  # noqa: E402
from node.harness.jobs import Job  # noqa: E402
from node.harness.node import Node  # noqa: E402
from node.harness.second import NAME, POOL, SecondNode  # noqa: E402

ROOM = "losses"
FIRST = "node-0"
NOTICE = "aws-node-termination-handler/spot-itn"
TOLD = ("role", "owner", "node", "reason", "counted")
STAYS = ("kubelet stop", "reboot")  # pods keep their uid
LOOK_S = 0.5
PATIENCE_S = 420.0
ROLES = ("trainer", "generation", "worker", "controller", "redis", "reward-custom")
TEMPLATES = {"reward-custom": "rewardCustom"}  # a role's field of `podTemplate`, where it has another name
READY = {"trainer": "TrainerReady", "generation": "GenerationReady", "reward-custom": "RewardReady"}
UNHEARD_S = 10.0  # two rounds of questions and an answer's time: until then nobody can know
OVERRIDES = (
    "algorithm.batchSize=16", "rollout.maxConcurrentRollouts=48", "evaluation.rows=50", "evaluation.intervalSteps=500",
    "checkpoint.intervalSteps=4", "algorithm.maxSteps=100000", "failurePolicy.maxRestarts=100",
    "generation.replicas=1",
)  # fmt: skip


@dataclass
class Loss:
    """How the machine is lost, and how it is there again."""

    kind: str
    lose: Callable[[SecondNode], None]
    heal: Callable[[SecondNode], None]


def drain(machine: SecondNode) -> None:
    machine.first.kubectl(
        "drain", NAME, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s",
        timeout_s=150, check=False,
    )  # fmt: skip


def notice(machine: SecondNode) -> None:
    machine.first.kubectl("taint", "node", NAME, f"{NOTICE}=notice:NoExecute", "--overwrite")


def reboot(machine: SecondNode) -> None:
    machine.power_off()
    machine.start()


LOSSES = [
    Loss("power off", SecondNode.power_off, SecondNode.start),
    Loss("partition", SecondNode.part, SecondNode.heal),
    Loss("kubelet stop", SecondNode.stop_kubelet, SecondNode.continue_kubelet),
    Loss("drain", drain, lambda machine: machine.first.kubectl("uncordon", NAME)),
    Loss("spot notice", notice, lambda machine: machine.first.kubectl("taint", "node", NAME, f"{NOTICE}-")),
    Loss("reboot", reboot, lambda machine: None),
]


class Watch(threading.Thread):
    """What the status said, sampled from the loss on, until training went on or was given up."""

    def __init__(self, job: Job, role: str, uid: str, kind: str = "") -> None:
        super().__init__(daemon=True)
        self.job, self.role, self.uid, self.kind = job, role, uid, kind
        self.began = time.monotonic()
        self.lines = self.steps()
        self.told = self.unready = self.replaced = self.next = -1.0
        self.false_s = 0.0
        self._at = self._stepped_at = self.began
        self._seen = self.lines

    def steps(self) -> int:
        try:
            return (self.job.run_dir() / "metrics.jsonl").read_bytes().count(b"\n")
        except (OSError, StopIteration):
            return 0

    def look(self) -> None:
        now = time.monotonic()
        since, gap = now - self.began, now - self._at
        self._at = now
        status = self.job.status
        conditions = {item["type"]: item for item in status.get("conditions", ())}
        progressing, own = conditions.get("Progressing", {}), conditions.get(READY.get(self.role, ""), {})
        claims = progressing.get("status") == "True" and progressing.get("reason") == "StepReported"
        stepped = self.steps() > self.lines
        unready = self.role in READY and own.get("status") != "True"
        if self.unready < 0 and unready:
            self.unready = since  # whatever the role's own condition says of it
        said = unready if self.role == "generation" else not claims
        if self.told < 0 and said:
            self.told = since
            self.lines = self.steps()  # a gang that is drained ends its step first: that is not yet going on
            stepped = False
        if (seen := self.steps()) > self._seen:
            self._seen, self._stepped_at = seen, now
        if claims and now - self._stepped_at > UNHEARD_S and since > UNHEARD_S:
            self.false_s += gap
        pods = self.job.pods(self.role)
        ready = [
            pod
            for pod in pods
            if any(item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", ()))
        ]
        if self.replaced < 0 and any(pod["metadata"]["uid"] != self.uid for pod in ready):
            self.replaced = since
            if self.role != "trainer":  # what was handed out before is trained meanwhile
                self.lines, stepped = self.steps(), False
        stays = self.kind in STAYS and not said and (self.told >= 0 or self.kind == "kubelet stop")
        if self.next < 0 and stepped and (self.role == "trainer" or self.replaced >= 0 or stays):
            self.next = since

    def run(self) -> None:
        while time.monotonic() < self.began + PATIENCE_S:
            with contextlib.suppress(httpx.HTTPError):
                self.look()
            unseen = self.kind in STAYS and self._stepped_at > self.began + 60  # it was back before anything was told
            if unseen or (self.next >= 0 and (self.replaced >= 0 or self.next > 100 or self.kind in STAYS)):
                return
            time.sleep(LOOK_S)


def settled(job: Job, machine: SecondNode, role: str) -> str:
    """The role's pod on the second machine, ready, and steps being made; its uid."""
    node = machine.first
    node.kubectl("label", "node", FIRST, f"{POOL}-", check=False)
    eventually(machine.ready, f"{NAME} is Ready", timeout_s=180, every_s=1)
    for pod in job.pods(role):
        if pod["spec"].get("nodeName") != NAME:
            node.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false", namespace=ROOM)

    def there() -> str:
        found = [pod for pod in job.pods(role) if pod["spec"].get("nodeName") == NAME]
        ready = [
            pod
            for pod in found
            for item in pod["status"].get("conditions", ())
            if item["type"] == "Ready" and item["status"] == "True"
        ]
        return str(ready[0]["metadata"]["uid"]) if ready else ""

    uid = eventually(there, f"{role} on {NAME}", timeout_s=PATIENCE_S, every_s=1)
    watch = Watch(job, role, uid)
    eventually(lambda: watch.steps() >= watch.lines + 3, "three steps more", timeout_s=PATIENCE_S, every_s=0.5)
    progress = lambda: job.condition("Progressing").get("reason") == "StepReported"  # noqa: E731
    eventually(progress, "the status says so", timeout_s=90, every_s=0.5)
    node.kubectl("label", "node", FIRST, f"{POOL}=spot", "--overwrite")
    return uid


def lost(job: Job, machine: SecondNode, role: str, loss: Loss) -> dict[str, Any]:
    """One case: lose, watch until training went on, heal."""
    uid = settled(job, machine, role)
    before = job.status
    known = {json.dumps(entry, sort_keys=True) for entry in before.get("failures", ())}
    watch = Watch(job, role, uid, loss.kind)
    watch.start()
    loss.lose(machine)
    watch.join()
    time.sleep(3)
    after = job.status
    entries = [entry for entry in after.get("failures", ()) if json.dumps(entry, sort_keys=True) not in known]
    loss.heal(machine)
    epochs = [int((status.get("attempts") or {}).get("epoch") or 0) for status in (before, after)]
    return {
        "role": role, "kind": loss.kind, "told": watch.told, "unready": watch.unready,
        "replaced": watch.replaced, "next": watch.next, "false_s": round(watch.false_s, 1),
        "epochs": epochs[1] - epochs[0],
        "entries": [{key: entry.get(key) for key in TOLD} for entry in entries],
    }  # fmt: skip


def table(cases: list[dict[str, Any]]) -> list[str]:
    """Rows of Markdown, one a role and kind of loss: the middle of n, and the worst where there are several."""

    def seconds(values: list[float | None]) -> str:
        known = sorted(value for value in values if value is not None and value >= 0)
        if not known:
            return "–"
        middle, worst = known[len(known) // 2], known[-1]
        return f"{middle:.0f}" if len(known) == 1 else f"{middle:.0f} / {worst:.0f}"

    rows = [
        "| the machine of | lost by | n | told | replaced | next step | claimed steps meanwhile | in `failures[]` |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for role, kind in dict.fromkeys((case["role"], case["kind"]) for case in cases if "kind" in case):
        same = [case for case in cases if (case["role"], case.get("kind")) == (role, kind)]
        said = {f"{entry['owner']}: {entry['reason']}" for case in same for entry in case["entries"]}
        figures = [seconds([case[name] for case in same]) for name in ("told", "replaced", "next")]
        looked = [case["false_s"] for case in same if case["false_s"] is not None]
        claimed = f"{max(looked):.0f} s" if looked else "–"
        entries = ", ".join(sorted(said)) or "nothing"
        rows.append(f"| {role} | {kind} | {len(same)} | {' | '.join(figures)} | {claimed} | {entries} |")
    return rows


def job_file(role: str, directory: Path) -> Path:
    told = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    taint = {"key": POOL, "operator": "Equal", "value": "spot", "effect": "NoSchedule"}
    told["spec"]["podTemplate"] = {TEMPLATES.get(role, role): {"nodeSelector": {POOL: "spot"}, "tolerations": [taint]}}
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(told))
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=ROLES, default="trainer")
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--kinds", nargs="+", default=[loss.kind for loss in LOSSES])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("node-losses.jsonl"))
    parser.add_argument("--table", type=Path, nargs="+", help="only print the table of these files")
    options = parser.parse_args()
    if options.table:
        lines = [line for file in options.table for line in file.read_text().splitlines()]
        print("\n".join(table([json.loads(line) for line in lines])))
        return
    kinds = [loss for loss in LOSSES if loss.kind in options.kinds]
    order = [kinds[index % len(kinds)] for index in range(options.cases)]
    random.Random(options.seed).shuffle(order)
    chart = yaml.safe_load((ROOT / "charts" / "areal" / "Chart.yaml").read_text())
    with tempfile.TemporaryDirectory() as folder, options.out.open("a") as out:
        directory = Path(folder)
        (directory / "log").mkdir()
        builder = Builder("areal.test", str(chart["appVersion"]))
        node = Node([*basic_images(directory), builder.build(IMAGES, directory)], directory / "log")
        machine = SecondNode(node, volumes=True)
        try:
            node.start()
            platform.install(node, builder, directory)
            platform.await_ownership(node)
            node.kubectl("create", "namespace", ROOM)
            node.mount_environment(ROOM)
            machine.start()
            job = Job.submit(node, ROOM, job_file(options.role, directory), *OVERRIDES)
            for loss in order:
                case = lost(job, machine, options.role, loss)
                out.write(json.dumps(case) + "\n")
                out.flush()
                print(json.dumps(case), flush=True)
            run = job.run_dir()
            patch = json.dumps({"spec": {"suspend": True}})
            node.kubectl("patch", "rljob", job.name, "--type=merge", "-p", patch, namespace=ROOM)
            eventually(lambda: not job.pods("trainer"), "the job is suspended", timeout_s=300, every_s=1)
            audit = subprocess.run(
                [*platform.AREAL, "audit", str(run), "--json"], capture_output=True, text=True, check=False, cwd=ROOT
            )
            told = json.loads(audit.stdout)
            kept = {key: told[key] for key in ("trained", "lost", "duplicated", "tombstoned")}
            out.write(json.dumps({"role": options.role, "audit": kept, "cases": len(order)}) + "\n")
            print(json.dumps(kept), flush=True)
        finally:
            machine.stop()
            node.stop()


if __name__ == "__main__":
    main()
