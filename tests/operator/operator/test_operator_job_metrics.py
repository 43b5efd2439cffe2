"""A job's resource as metrics."""

from areal.observe.catalog import CATALOG, Scope
from areal_operator.operator.job_metrics import JobCollector, samples
from prometheus_client import CollectorRegistry, generate_latest

JOB = {
    "metadata": {"name": "digits", "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"algorithm": {"name": "GRPO", "maxSteps": 200, "maxStaleness": 2}, "managedBy": "areal.dev/operator"},
    "status": {
        "summary": "Running",
        "startTime": "2026-01-01T00:00:10Z",
        "conditions": [
            {"type": "Progressing", "status": "True", "reason": "Stepping"},
            {"type": "Failed", "status": "False"},
        ],
        "roles": [{"name": "trainer", "desired": 2, "ready": 1}],
        "progress": {"step": 12, "policyVersion": 11, "reward": 0.25, "lastReportTime": "2026-01-01T00:01:00Z"},
        "attempts": {"epoch": 3, "restarts": 2},
    },
}


def served(jobs, leads=True):
    registry = CollectorRegistry()
    registry.register(JobCollector(lambda: jobs, lambda: leads))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_a_job_is_told_by_its_conditions_progress_restarts_and_roles():
    lines = served([JOB])
    about = 'namespace="ns",rljob="digits"'
    for line in (
        f'areal_rljob_condition{{{about},status="True",type="Progressing"}} 1.0',
        f'areal_rljob_condition{{{about},status="False",type="Progressing"}} 0.0',
        f'areal_rljob_condition{{{about},status="True",type="Failed"}} 0.0',
        'areal_rljob_condition_reason{namespace="ns",reason="Stepping",rljob="digits",type="Progressing"} 1.0',
        'areal_rljob_volume_info{namespace="ns",persistentvolumeclaim="digits-run",rljob="digits"} 1.0',
        'areal_rljob_volume_info{namespace="ns",persistentvolumeclaim="digits-redis",rljob="digits"} 1.0',
        f"areal_rljob_checkpoint_interval_steps{{{about}}} 20.0",
        f"areal_rljob_progress_step{{{about}}} 12.0",
        f"areal_rljob_stall_timeout_seconds{{{about}}} 1800.0",
        f"areal_rljob_max_steps{{{about}}} 200.0",
        f"areal_rljob_max_staleness{{{about}}} 2.0",
        f"areal_rljob_reward{{{about}}} 0.25",
        f"areal_rljob_restarts_total{{{about}}} 2.0",
        f"areal_rljob_epoch{{{about}}} 3.0",
        f'areal_rljob_role_desired{{{about},role="trainer"}} 2.0',
        f'areal_rljob_role_ready{{{about},role="trainer"}} 1.0',
        f'areal_rljob_status{{{about},summary="Running"}} 1.0',
        f'areal_rljob_info{{algorithm="GRPO",managed_by="areal.dev/operator",{about},runtime=""}} 1.0',
        f"areal_rljob_created_timestamp_seconds{{{about}}} 1.7672256e+09",
    ):
        assert line in lines
    assert not any("completion" in line or "checkpoint_step" in line for line in lines), "what is unknown is not told"


def test_losses_are_told_by_role_owner_and_node_each_by_its_newest():
    def lost(time, node, owner="node"):
        return {"time": time, "role": "trainer", "owner": owner, "node": node}

    failures = [
        lost("2026-01-01T00:00:10Z", "n1"),
        lost("2026-01-01T00:00:20Z", "n1"),
        lost("2026-01-01T00:00:30Z", "", "job"),
    ]
    lines = served([{**JOB, "status": {**JOB["status"], "failures": failures}}])
    name, about = "areal_rljob_loss_timestamp_seconds", 'rljob="digits",role="trainer"'
    assert sorted(line for line in lines if "loss_timestamp" in line) == [
        f'{name}{{namespace="ns",node="",owner="job",{about}}} 1.76722563e+09',
        f'{name}{{namespace="ns",node="n1",owner="node",{about}}} 1.76722562e+09',
    ]


def test_every_sample_is_of_the_catalogue_with_its_labels():
    declared = {name: metric for name, metric in CATALOG.items() if metric.scope is Scope.JOB}
    for name, labels, _value in samples({**JOB, "status": {**JOB["status"], "usage": USED}}, 0.0):
        assert set(declared[f"areal_rljob_{name}"].labels) == set(labels), name


def test_a_job_that_was_just_created_has_few_series_and_breaks_nothing():
    names = [line.partition("{")[0] for line in served([{"metadata": {"name": "new", "namespace": "ns"}}])]
    expected = ("info", "volume_info", "volume_info", "checkpoint_interval_steps", "stall_timeout_seconds")
    assert names == [f"areal_rljob_{name}" for name in expected]


def test_a_job_on_claims_of_others_names_these():
    spec = {"storage": {"claimName": "shared"}, "replay": {"backend": "External"}, "checkpoint": {"intervalSteps": 5}}
    lines = "".join(served([{**JOB, "spec": spec}]))
    assert 'persistentvolumeclaim="shared"' in lines
    assert "digits-run" not in lines
    assert "digits-redis" not in lines
    assert 'areal_rljob_checkpoint_interval_steps{namespace="ns",rljob="digits"} 5.0' in lines


def test_only_the_leader_tells_about_jobs():
    assert served([JOB], leads=False) == []


USED = {"gpus": 4, "gpuSeconds": 7200, "since": "2026-01-01T00:00:00Z"}


def test_gpu_seconds_go_on_with_what_is_held_and_a_job_without_gpus_has_none():
    job = {**JOB, "status": {**JOB["status"], "usage": USED}}
    told = {name: value for name, _, value in samples(job, 1767225600.0 + 90.0)}
    assert (told["gpus"], told["gpu_seconds_total"]) == (4.0, 7200.0 + 360.0)
    before = {name: value for name, _, value in samples(job, 0.0)}
    assert before["gpu_seconds_total"] == 7200.0, "a clock that is behind takes nothing away"
    assert not {"gpus", "gpu_seconds_total"} & {name for name, _, _ in samples(JOB, 1767225600.0)}
