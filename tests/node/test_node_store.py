"""A run on a real node is copied to an S3 server, its job and claim go, and another namespace's job goes on from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kube.harness.processes import eventually
from node.harness.jobs import Job
from node.harness.node import Node
from node.harness.stores import give_secret, listed
from node.test_node_jobs import QUICKSTART, SHORT, clean
from support.s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.kube_node, pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_a_job_goes_on_in_another_namespace_from_the_copy_of_one_that_is_gone(
    node: Node, installed: None, room: str, other_room: str, digits: Path, server: S3Server
) -> None:
    stored = (f"storage.store=s3://{BUCKET}/jobs", "storage.storeSecret=store")
    for each in (room, other_room):
        give_secret(node, each, server)
    first = Job.submit(node, room, QUICKSTART, *SHORT, *stored, "algorithm.maxSteps=400", "storage.retain=Delete")
    first.await_step(6, timeout_s=600)
    see_who_has_the_secret(first)
    name = f"{room}/digits-{first.run_dir().name.removeprefix('digits-')[:8]}"
    kept = lambda: [path for path in listed(server, name) if path.startswith("checkpoints/")]  # noqa: E731
    eventually(kept, "a copy with a checkpoint", timeout_s=180)
    node.kubectl("delete", "rljob", "digits", "--wait", namespace=room, timeout_s=180)

    steps = max(int(path.split("/")[1][5:11]) for path in kept()) + 8
    address = f"s3://{BUCKET}/jobs/{name}"
    more = (*stored, f"storage.restore={address}", f"algorithm.maxSteps={steps}")
    second = Job.submit(node, other_room, QUICKSTART, *SHORT, *more)
    status = second.await_end(timeout_s=900)
    assert clean(status), status["audit"]
    assert status["progress"]["step"] == steps
    assert second.summary()["groups"] == {"trained": steps * 16, "tombstoned": {}, "lost": 0, "duplicated": 0}
    rows = [json.loads(line) for line in (second.run_dir() / "metrics.jsonl").read_text().splitlines()]
    assert {row["fence"] for row in rows} >= {1, 2}  # steps of both trainers
    whole = listed(server, f"{other_room}/digits-{second.run_dir().name.removeprefix('digits-')[:8]}")
    assert {"summary.json", "report.html", "model/config.json"} <= whole.keys()  # `finish` copied the end


def see_who_has_the_secret(job: Job) -> None:
    """The pod that copies sees the store's Secret, and no other that runs."""
    pods = job.node.admin.list("v1", "Pod", job.namespace, f"areal.dev/rljob={job.name}")
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    seeing = {
        pod["metadata"]["labels"]["areal.dev/role"]
        for pod in running
        if any(volume.get("secret", {}).get("secretName") == "store" for volume in pod["spec"]["volumes"])
    }
    assert seeing == {"archive"}
    assert len(running) >= 6
