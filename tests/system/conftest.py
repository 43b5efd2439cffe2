"""Whole jobs, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.job_run import ROOT, SMALL, JobRun


@pytest.fixture
def start_job(digits: Path, tmp_path: Path) -> Iterator[Callable[..., JobRun]]:
    """Starts `areal run` on the quickstart's file, made small; ends whatever is left at the end of the test."""
    runs: list[JobRun] = []

    def start(
        *overrides: str,
        job: str = "examples/quickstart.yaml",
        resume: JobRun | None = None,
        small: Sequence[str] = SMALL,
    ) -> JobRun:
        run_dir = resume.run_dir if resume else tmp_path / f"run-{len(runs)}"
        run = JobRun(ROOT / job, run_dir, [*small, *overrides], resume=resume is not None)
        runs.append(run)
        return run.start()

    yield start
    for run in runs:
        run.stop()
