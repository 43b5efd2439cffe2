"""A whole small job as its pods run it: prepared, started in any order, hurt, changed, suspended, resumed, audited."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.processes.core import ChildPhase
from areal.spec import RLJob
from areal.yaml_file.document import read_document
from support.job_run import ROOT
from support.pods import NOBODY, Pods

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

WORST_ORDER = ("trainer", "worker", "generation", "controller", "reward-custom", "redis")


def small_job(model: Path, **changes: Any) -> RLJob:
    """The quickstart's job, small, with sources as a cluster takes them, and with `changes` of its spec."""
    loaded = read_document(ROOT / "examples" / "quickstart.yaml").values
    spec = loaded["spec"]
    spec["model"] = {"path": str(model)}
    spec["recipe"] = {"configMap": {"name": "recipe", "key": "recipe.py"}}
    spec["dataset"] = {split: {"jsonl": str(ROOT / source["jsonl"])} for split, source in spec["dataset"].items()}
    spec["rollout"]["maxConcurrentRollouts"] = 48
    spec["algorithm"] |= {"batchSize": 16, "maxSteps": 16}
    spec["evaluation"] |= {"intervalSteps": 16, "rows": 50}
    spec["checkpoint"] = {"intervalSteps": 4, "keep": 2}
    for name, value in changes.items():
        spec[name] = {**spec.get(name, {}), **value} if isinstance(value, dict) else value
    return RLJob.model_validate(loaded)


@pytest.fixture
def pods(digits: Path, tmp_path: Path) -> Iterator[Pods]:
    recipe = (ROOT / "examples" / "digits.py").read_text()
    made = Pods(tmp_path / "pods", small_job(digits), recipe)
    (made.mounts["recipe"] / "recipe.py").write_text(recipe)
    yield made
    made.kill_all()


def test_a_job_survives_what_happens_to_pods_and_trains_every_group_once(pods):
    assert pods.tool("prepare") == (0, "dataset train: 20000 rows; dataset evaluation: 500 rows"), pods.all_output()
    assert pods.tool("prepare")[0] == 0, "prepared twice is prepared once"

    pods.start_all(WORST_ORDER)
    trainer = pods.pods["trainer-0"].launcher
    pods.until("launcher of the trainer", trainer.awaits)
    assert trainer.phase() is ChildPhase.IDLE, "no trainer starts before its epoch"
    assert trainer.restart(1)
    pods.until("step", lambda: pods.step() >= 3)
    assert pods.rollout().max_concurrent_rollouts == 48
    assert "generation" in pods.output("generation-0"), "the role's log is the container's"

    # a worker's pod dies whole, and comes back; the trainer's process dies, and waits for its next epoch
    pods.pods["worker-0"].process.kill()
    pods.pods["worker-0"].process.wait(60)
    pods.start("worker")
    pods.pods["trainer-0"].below("areal_trainer.main")[0].send_signal(signal.SIGKILL)
    pods.until("trainer that waits", trainer.awaits)
    assert trainer.child().last_exit_code == -signal.SIGKILL
    assert trainer.restart(1)
    assert trainer.awaits(), "an epoch begins once"
    pods.set_hot(max_steps=22, max_concurrent_rollouts=40)
    assert trainer.restart(2)
    assert trainer.restart(2), "told twice is told once"
    pods.until("step after the trainer's death", lambda: pods.step() >= 8)
    told = pods.trainer()
    assert (told.max_steps, told.checkpoint_step >= 4, told.checkpoint_at > 0) == (22, True, True)

    # the controller dies in its pod: its launcher starts it again, and it keeps what was set
    controller = pods.pods["controller-0"].launcher
    pods.pods["controller-0"].below("areal.processes.role", "controller")[0].kill()
    pods.until("another controller", lambda: controller.child().restarts == 1)
    pods.until("a controller that answers", lambda: controller.phase() is ChildPhase.READY)
    assert (pods.rollout().max_steps, pods.rollout().max_concurrent_rollouts) == (22, 40)
    pods.set_hot(max_steps=22, max_concurrent_rollouts=40)

    # suspended: the trainer saves and stops, then all pods go
    trainer.drain()
    pods.until("a stopped trainer", lambda: trainer.phase() is ChildPhase.STOPPED)
    assert trainer.child().last_exit_code == 143
    codes = pods.stop(*pods.pods)
    assert {name: code for name, code in codes.items() if code not in (0, 143)} == {}, pods.all_output()

    # resumed
    pods.start_all(reversed(WORST_ORDER))
    trainer = pods.pods["trainer-0"].launcher
    pods.until("launcher of the trainer", trainer.awaits)
    assert trainer.restart(3)
    pods.until("the end", lambda: trainer.phase() is ChildPhase.COMPLETE)
    assert pods.pods["trainer-0"].process.poll() is None, "its launcher stays, to be read"
    pods.stop(*pods.pods)

    code, words = pods.tool("finish")
    audit = json.loads(words)
    assert (code, audit["ok"], audit["lost"], audit["duplicated"]) == (0, True, 0, 0), words
    summary = json.loads((pods.mounts["run"] / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["groups"]["trained"]) == ("Complete", 22, 22 * 16)
    assert summary["restarts"] == {"trainer": 2}
    assert (pods.mounts["run"] / "report.html").stat().st_size > 0
    if os.geteuid() == 0:
        strange = [path for path in pods.mounts["run"].rglob("*") if path.stat().st_uid != NOBODY]
        assert strange == [], "all of it was written by the pods' user"


def test_preparing_names_what_is_not_there(pods):
    (pods.mounts["recipe"] / "recipe.py").unlink()
    code, words = pods.tool("prepare")
    assert code == 64
    assert "spec.recipe: there is no" in words
    assert not (pods.mounts["run"] / "resolved.json").exists()
