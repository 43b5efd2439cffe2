"""Only declared metrics can be served, and they carry the job's labels."""

import json
import logging
import urllib.request

import pytest
from areal.errors import BugError
from areal.observe import logs
from areal.observe.catalog import CATALOG, Type
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry


def test_a_served_metric_has_namespace_job_and_role():
    metrics = RoleMetrics("trainer", "digits")
    metrics.counter("areal_trainer_steps_total").inc()
    port = metrics.serve(0)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    assert 'areal_trainer_steps_total{namespace="local",rljob="digits",role="trainer"} 1.0' in text


@pytest.mark.parametrize("name", ["areal_unknown_total", "areal_trainer_policy_version"])
def test_an_undeclared_metric_is_refused(name):
    with pytest.raises(BugError, match=name):
        RoleMetrics("trainer", "digits").counter(name)


def test_names_follow_the_conventions_of_prometheus():
    for metric in CATALOG.values():
        assert metric.name.startswith("areal_")
        assert metric.help
        assert metric.name.endswith("_total") == (metric.type is Type.COUNTER), metric.name
        assert bool(metric.buckets) == (metric.type is Type.HISTOGRAM), metric.name


def test_waits_are_listed_oldest_first_and_vanish_when_over():
    now = [0.0]
    waits = WaitRegistry("worker-0", clock=lambda: now[0])
    with waits.waiting("server", "version >= 3"):
        now[0] = 2.0
        with waits.waiting("ledger", "a reply", deadline_s=5):
            now[0] = 3.0
            listed = waits.list()
    assert [(wait.name, wait.age_s, wait.deadline_s) for wait in listed] == [("server", 3.0, 0.0), ("ledger", 1.0, 5)]
    assert waits.list() == []


def test_progress_tells_how_long_nothing_was_done():
    now = [0.0]
    progress = ProgressCounter(clock=lambda: now[0])
    progress.advance(2)
    now[0] = 4.0
    progress.advance(0)
    assert (progress.value, progress.since_s()) == (2, 4.0)


def test_json_logs_carry_job_role_and_extras(capsys):
    logs.setup("trainer", "digits", json=True)
    logging.getLogger("x").info("published", extra={"policy_id": "3.f1"})
    line = json.loads(capsys.readouterr().err)
    assert (line["job"], line["role"], line["policy_id"], line["message"]) == ("digits", "trainer", "3.f1", "published")
