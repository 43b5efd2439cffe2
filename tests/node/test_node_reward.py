"""The reward image's sandbox in pods as the operator makes them: restricted, on the node's kernel and in gVisor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from areal.admit.pod_rules import offer_of
from areal.spec.runtime import RuntimeSandbox
from node.harness.builds import Builder
from node.harness.node import Node
from node.harness.pods import await_pods, pod

pytestmark = pytest.mark.kube_node

AREAL = "/opt/areal/bin/areal"
GOOD = "a, b = map(int, input().split())\nprint(a + b)\n"
WRONG = "a, b = map(int, input().split())\nprint(a - b)\n"
ATTACK = """
import os, socket

won = []

def attempt(name, act):
    try:
        act()
    except (OSError, ValueError):
        return
    won.append(name)

def secret():
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if b"s3cret" in file.read():
                    return
        except OSError:
            continue
    raise ValueError

def signal():
    for pid in set(range(1, 400)) - {os.getpid(), os.getppid()}:  # under namespaces the parent is the cell's own
        try:
            os.kill(pid, 0)
            return
        except OSError:
            continue
    raise ValueError

attempt("the service's environment", secret)
attempt("a file of the pod", lambda: open("/sandbox/suite.json").read())
attempt("loopback", lambda: socket.create_connection(("127.0.0.1", 9000), 1))
attempt("the API server", lambda: socket.create_connection(("10.96.0.1", 443), 1))
attempt("a process", lambda: os.fork() or os._exit(0))
attempt("a signal", signal)
a, b = map(int, input().split())
print(*won or [a + b], sep=", ")
"""
WRITES = """
a, b = map(int, input().split())
open("/tmp/mark", "w").write("x")
print(a + b)
"""
SUITE = {"input_output": {"inputs": ["1 2\n", "40 2\n"], "outputs": ["3\n", "42\n"]}}
FILES = {"good.py": GOOD, "wrong.py": WRONG, "attack.py": ATTACK, "writes.py": WRITES, "suite.json": json.dumps(SUITE)}


@pytest.fixture(params=[("T2", None), ("T4", "gvisor")], ids=["restricted", "gvisor"])
def cell(request: pytest.FixtureRequest, node: Node, room: str, builder: Builder) -> tuple[str, str]:
    """A pod of the reward image that sleeps, its tier; the programs are in a ConfigMap below /sandbox."""
    tier, runtime_class = request.param
    metadata = {"namespace": room, "name": "programs"}
    node.admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": FILES})
    more: dict[str, Any] = {"runtimeClassName": runtime_class} if runtime_class else {}
    image = builder.reference("reward")
    sleeping = ["/opt/areal/env/bin/python", "-c", "import time; time.sleep(3600)"]
    made = pod(room, "reward", sleeping, image=image, environment=True, enableServiceLinks=False, **more)
    made["spec"]["containers"][0]["env"] = [{"name": "SECRET", "value": "s3cret"}]
    made["spec"]["volumes"].append({"name": "programs", "configMap": {"name": "programs"}})
    made["spec"]["containers"][0]["volumeMounts"].append({"name": "programs", "mountPath": "/sandbox"})
    node.admin.create(made)
    await_pods(node.admin, room, "reward")
    return room, tier


MATH = """
import asyncio
from areal.reward.scorer_pool.process import ScorerCommand
from areal.reward.scorer_pool.fork_server import ForkServer

async def main():
    math = "areal.reward.scorers.math"
    starter = ForkServer(ScorerCommand(math, memory_bytes=1 << 30, preloaded=True, confined=True))
    child = await starter.start_child(120)
    child.send([["1/2", "0.5", True]])
    ((verdict, _),) = await child.receive(60)
    print(verdict[0], *child.lacking)
    await starter.stop()

asyncio.run(main())
"""


def said(node: Node, room: str, *command: str) -> dict[str, Any]:
    """What `areal reward …` prints in the pod."""
    done = node.kubectl("exec", "reward", "--", AREAL, "reward", *command, "--json", namespace=room, check=False)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    assert found, done.stderr
    return found


def judged(node: Node, room: str, program: str) -> dict[str, Any]:
    return said(node, room, "try", str(Path("/sandbox") / program), "--suite", "/sandbox/suite.json")


def test_a_pod_knows_its_tier_judges_programs_and_holds_an_attack(node: Node, cell: tuple[str, str]) -> None:
    room, tier = cell
    can = said(node, room, "capabilities")
    assert can["tier"] == tier, [probe for probe in can["probes"] if not probe["held"]]
    assert can["kernel"] == ("gvisor" if tier == "T4" else "host")
    assert {one["language"] for one in can["languages"] if one["runs"]} >= {"python"}
    good, wrong, attack = (judged(node, room, f"{name}.py") for name in ("good", "wrong", "attack"))
    assert (good["status"], good["score"], good["tier"]) == ("PASSED", 1.0, tier), good
    assert (wrong["status"], wrong["score"]) == ("WRONG_ANSWER", 0.0), wrong
    assert (attack["status"], attack["score"]) == ("PASSED", 1.0), attack["cases"]  # it prints what it won instead


def test_what_the_pod_offers_is_what_admission_expects_of_its_spec(node: Node, cell: tuple[str, str]) -> None:
    room, _ = cell
    found = node.admin.get("v1", "Pod", room, "reward")
    assert found is not None
    expected = offer_of(found["spec"], RuntimeSandbox())
    can = said(node, room, "capabilities")
    assert (expected.tier, expected.kernel) == (can["tier"], can["kernel"])
    several = expected.tier != "T2"
    assert (can["fork"], can["scratch"], can["execute"]) == (several, several, several)
    assert judged(node, room, "writes.py")["status"] == ("PASSED" if several else "RUNTIME_ERROR")


def test_the_math_scorers_of_a_pod_are_confined(node: Node, cell: tuple[str, str]) -> None:
    room, tier = cell
    done = node.kubectl("exec", "reward", "--", "/opt/areal/env/bin/python", "-c", MATH, namespace=room)
    verdict, *lacking = done.stdout.split()
    assert verdict == "EQUAL"
    needed = {"no_new_privileges", "landlock", "seccomp"} if tier == "T2" else {"seccomp"}  # gVisor has no Landlock
    assert needed.isdisjoint(lacking)
