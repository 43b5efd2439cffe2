"""An elastic fleet on a real node: it changes its size while a job trains, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from node.harness.jobs import Job
from node.harness.node import Node
from node.test_node_jobs import QUICKSTART, SHORT, clean

pytestmark = [pytest.mark.kube_node, pytest.mark.nightly, pytest.mark.timeout(1800)]

STEPS = 60


def test_a_fleet_changes_its_size_under_a_job_and_nothing_is_lost(
    node: Node, installed: None, room: str, digits: Path
) -> None:
    bounds = tuple(
        f"generation.{name}"
        for name in ("replicas=3", "elastic.minReplicas=1", "elastic.maxReplicas=3", "elastic.windowSeconds=20")
    )
    length = (f"algorithm.maxSteps={STEPS}", f"evaluation.intervalSteps={STEPS // 2}")
    job = Job.submit(node, room, QUICKSTART, *SHORT, *bounds, *length)
    status = job.await_end(timeout_s=1200)
    assert clean(status), status["audit"]
    assert status["progress"]["step"] == STEPS
    events = node.admin.list("v1", "Event", room)
    told = [event["message"] for event in events if event["reason"] == "FleetResized"]
    print(told, status["generation"])
    assert told, "three servers on two cores are not what one trainer takes"
    assert 1 <= status["generation"]["wanted"] <= 3
    assert status["attempts"]["epoch"] == 1, "the trainer never stopped for it"
