"""A job whose episodes are an agent over OpenAI's chat API, trained by whole processes."""

from __future__ import annotations

import json

import httpx
import pytest
from areal.plan.resolved import ResolvedJob
from areal.record.segment import FrameKind, frames, read
from areal.tls import ENV_TLS_DIR, https_client, web_address
from areal.v1.record_pb2 import SampleRecord
from support.certificates import authority, leaf, put

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]


@pytest.mark.nightly
def test_an_agent_over_http_is_trained_evaluated_and_audited(start_job):
    limits = ("algorithm.maxSteps=6", "evaluation.intervalSteps=6", "recording.tokenAudit=true")
    run = start_job(*limits, job="examples/agent_openai.yaml")
    assert run.finish(timeout_s=300) == 0, run.output[-4000:]
    summary = run.summary()
    assert (summary["status"], summary["steps"]) == ("Complete", 6)
    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (6 * 16, 0, 0)
    tokens = run.audit("--tokens")
    assert tokens["trained"] == tokens["equal"] > 0
    assert (tokens["unwitnessed"], tokens["gaps"]) == (0, [])
    assert tokens["sampled"] == tokens["equal"] + sum(tokens["untrained"].values())
    for row in run.metrics():
        assert row["samples"] == row["sequences"] == 16 * 8
        assert (row["logprob_mismatch_max"] or 0) < 1e-3, "the trainer reads the very ids that the engine was fed"
    evaluations = [json.loads(line) for line in (run.run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert [(entry["version"], entry["rows"], entry["failed_rows"]) for entry in evaluations] == [
        (0, 50, 0),
        (6, 50, 0),
    ]
    files = sorted((run.run_dir / "trajectories").glob("worker-*.rec"))
    rows = [(path, frame) for path in files for frame in frames(path) if frame.header.kind is FrameKind.SAMPLE]
    said = [SampleRecord.FromString(read(path, frame.offset)) for path, frame in rows]
    sampled = [one for one in said if one.texts]
    assert len(sampled) >= 6 * 16 * 8
    assert all(one.fault.message for one in said if not one.texts), "an episode without a sample says why"
    second_tries = [one for one in sampled if one.texts[0].text.count(b"=") == 2]
    assert second_tries, "a wrong answer is followed by the question and another try, in one sequence"
    assert {one.reward for one in sampled} <= {0.0, 0.5, 1.0}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("encrypted", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_gateway_and_a_worker_are_killed_while_agents_learn(start_job, tmp_path, monkeypatch, encrypted):
    if encrypted:
        root = authority()
        monkeypatch.setenv(ENV_TLS_DIR, str(put(tmp_path / "tls", leaf(root), root)))
    limits = ("algorithm.maxSteps=10", "recording.tokenAudit=true", "rollout.gateway.replicas=1")
    run = start_job(*limits, job="examples/agent_openai.yaml")
    run.wait_for("step 1", lambda: run.step() >= 1, timeout_s=300)
    ends = ResolvedJob.load(run.run_dir).endpoints
    with httpx.Client(verify=https_client()) as client:
        assert client.get(f"{web_address(ends.gateway_urls[0])}/health").is_success
        if encrypted:
            with pytest.raises(httpx.RemoteProtocolError):
                client.get(f"{ends.gateway_urls[0]}/health")
    for step, role in ((3, "gateway"), (5, "worker"), (7, "gateway")):
        run.wait_for(f"step {step}", lambda step=step: run.step() >= step, timeout_s=300)
        (before,) = (process.pid for process in run.processes(f"areal.processes.role {role}"))
        run.kill(f"areal.processes.role {role}")
        run.wait_for(
            f"another {role}",
            lambda role=role, before=before: any(
                process.pid != before for process in run.processes(f"areal.processes.role {role}")
            ),
            timeout_s=60,
        )
    assert run.finish(timeout_s=240) == 0, run.output[-4000:]
    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (10 * 16, 0, 0)
    assert not audit["tombstoned"], "no group is lost to a gateway's death"
    tokens = run.audit("--tokens")
    assert tokens["trained"] == tokens["equal"] > 0
    assert (tokens["unwitnessed"], tokens["gaps"]) == (0, [])
