"""`areal status` of a job on a cluster: its lines, from what the operator wrote."""

from __future__ import annotations

from datetime import UTC, datetime

from areal_operator.job_commands import base_url_of, job_row, lines

NOW = datetime(2030, 1, 1, 10, tzinfo=UTC).timestamp()
IDLE = {"cause": "Unschedulable", "role": "trainer", "pod": "digits-trainer-1", "since": "2030-01-01T10:00:00Z",
        "text": "digits-trainer-1: 0/5 nodes: 3 too few nvidia.com/gpu"}  # fmt: skip


def test_the_lines_say_how_far_it_is_and_what_it_waits_for():
    status = {
        "summary": "Waiting",
        "progress": {"step": 7, "maxSteps": 20, "reward": 0.25},
        "idle": IDLE,
        "roles": [{"name": "trainer", "desired": 2, "ready": 1}, {"name": "reward", "desired": 0}],
        "checkpoint": {"step": 5},
        "failures": [
            {"time": "2030-01-01T09:00:00Z", "role": "trainer", "reason": "OOMKilled", "action": "RestartTrainer"}
        ],
    }
    assert lines(status, NOW) == [
        ("status", "Waiting"),
        ("step", "7 of 20, reward 0.25"),
        ("why", "digits-trainer-1: 0/5 nodes: 3 too few nvidia.com/gpu (Unschedulable, since 10:00:00 UTC)"),
        ("pods", "trainer 1/2"),
        ("checkpoint", "of step 5"),
        ("last failure", "trainer: OOMKilled, RestartTrainer"),
    ]
    (_, _, (_, why), *_) = lines({**status, "idle": {**IDLE, "pod": "", "text": "no step was trained yet"}}, NOW)
    assert why.startswith("trainer: no step was trained yet (")


def test_the_newest_step_has_its_age_while_the_job_runs():
    status = {"summary": "Running", "progress": {"step": 7, "maxSteps": 20, "lastReportTime": "2030-01-01T09:59:48Z"}}
    assert lines(status, NOW)[1] == ("step", "7 of 20, made 12 s ago")
    done = {"type": "Complete", "status": "True", "reason": "TrainingSucceeded", "message": "", "observedGeneration": 1,
            "lastTransitionTime": "2030-01-01T09:59:50Z"}  # fmt: skip
    assert lines({**status, "conditions": [done]}, NOW)[1] == ("step", "7 of 20")


def test_a_job_that_nobody_looked_at_says_so():
    assert lines({}, NOW) == [("status", "the operator has not looked yet")]


def test_a_job_with_gateways_says_where_agents_call_them():
    job = {
        "metadata": {"name": "digits", "namespace": "team"},
        "spec": {"rollout": {"workflow": "agent", "gateway": {"replicas": 2}}},
    }
    assert base_url_of(job) == "http://digits-gateway-front.team.svc:8000/v1"
    assert base_url_of({**job, "spec": {"rollout": {"workflow": "agent", "gateway": {"replicas": 0}}}}) is None
    assert base_url_of({**job, "spec": {}}) is None
    encrypted = {"runtimeSnapshot": {"configMapName": "digits-runtime", "hash": "1", "tls": True}}
    assert base_url_of({**job, "status": encrypted}) == "https://digits-gateway-front.team.svc:8000/v1"


def test_a_job_s_line_tells_what_its_gpus_brought():
    since = datetime.fromtimestamp(NOW - 3600, UTC).isoformat()
    told = {
        "summary": "Running",
        "progress": {"step": 12, "maxSteps": 400, "groupsTrained": 3000, "reward": 0.25, "wastedShare": 0.0123},
        "usage": {"gpus": 8, "gpuSeconds": 7200, "since": since},
    }
    assert job_row({"metadata": {"name": "digits"}, "status": told}, NOW) == {
        "job": "digits", "status": "Running", "step": "12/400", "reward": "0.250", "gpus": "8", "gpuHours": "10.0",
        "groupsPerGpuHour": "300", "wasted": "1.2%",
    }  # fmt: skip


def test_a_job_that_nobody_looked_at_has_a_line_of_dashes():
    row = job_row({"metadata": {"name": "new"}}, NOW)
    assert list(row.values()) == ["new", "-", "0/0", "-", "0", "0.0", "-", "-"]
