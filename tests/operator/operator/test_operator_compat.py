"""What earlier releases wrote is read by this one: `compat/<release>/` holds files as each release made them.

A release adds its own folder and never changes another's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from areal.plan.resolved import ResolvedJob
from areal.spec.status import JobStatus
from areal_operator.operator.children import read_snapshot
from areal_operator.operator.decide import decide
from areal_operator.operator.decision import HandsOff
from areal_operator.operator.job_state import JobState, state_in
from areal_operator.operator.summarize import summarize
from operator_values import NOW, seen

RELEASES = sorted(path for path in (Path(__file__).parent / "compat").iterdir() if path.is_dir())
each_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


@each_release
def test_the_configuration_that_running_pods_have_is_read(release: Path) -> None:
    text = (release / "resolved.json").read_text()
    job = ResolvedJob.parse(text, release.name)
    assert job.name == json.loads(text)["job"]["metadata"]["name"]
    assert job.in_pods


@each_release
def test_the_runtime_that_a_running_job_keeps_is_read(release: Path) -> None:
    runtime = read_snapshot(json.loads((release / "runtime-snapshot.json").read_text()))
    assert runtime.model_fields_set


@each_release
def test_a_running_jobs_status_is_read_and_written_on(release: Path) -> None:
    status = json.loads((release / "status.json").read_text())
    state = state_in(status)
    assert state.epoch == status["attempts"]["epoch"] > 0
    assert [failure.at for failure in state.failures] == sorted(failure.at for failure in state.failures)
    assert state.prepared
    base = seen(state)
    decision = decide(base, NOW)
    assert not isinstance(decision, HandsOff)
    written = summarize(replace(base, raw={**base.raw, "status": status}), decision, NOW)
    JobStatus.model_validate(written, by_alias=True, by_name=False)
    assert written["attempts"]["epoch"] >= state.epoch


def test_a_status_from_before_a_field_was_there_is_read() -> None:
    """A field that a release added has a value for statuses of releases before it."""
    status = json.loads((RELEASES[-1] / "status.json").read_text())
    for part in ("waiting", "failures", "progress", "checkpoint", "attempts"):
        fewer = {key: value for key, value in status.items() if key != part}
        assert isinstance(state_in(fewer), JobState)
    bare = {**status, "attempts": {"epoch": 3}, "failures": [{"time": "2026-01-01T00:00:00Z", "role": "trainer"}]}
    assert (state_in(bare).fruitless, state_in(bare).failures[0].counted) == (0, False)
