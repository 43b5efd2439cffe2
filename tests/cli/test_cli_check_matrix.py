"""Two hundred wrong jobs: `areal check` and `areal run` never disagree, at any load."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from areal.cli.main import app, guarded
from areal.errors import ArealError, ExitCode
from areal.local.staging import StagingRequest, load, stage
from job_mutants import spoil

pytestmark = pytest.mark.component  # recipes are imported in processes of their own

MUTANTS = 200
CLUSTERS = "for-clusters-only"


def checked(job: Path) -> tuple[int, dict]:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
        code = guarded(lambda: app(["check", str(job), "--json"]))
    return code, json.loads(said.getvalue())


def staged(job: Path) -> ArealError | None:
    """What a run refuses before its first role starts."""
    request = StagingRequest(job)
    try:
        stage(request, load(request), lambda text: None)
    except ArealError as error:
        return error
    return None


def named(refused: ArealError) -> set[str]:
    """Rules that a refusal names."""
    return set(re.findall(r" \[([-a-z]+)\]$", refused.message, re.MULTILINE))


def disagreement(folder: Path, seed: int, told: Counter[int]) -> str:
    """Of check and run on one mutant; nothing where they say the same."""
    done = spoil(folder, seed)
    with contextlib.chdir(folder):
        code, said = checked(folder / "job.yaml")
        refused = staged(folder / "job.yaml")
    told[code] += 1
    if refused is not None and refused.exit_code == ExitCode.INFRA and said.get("notLookedAt"):
        return ""  # a hub that doesn't answer: check asks no network, and says so
    warned = any(one["rule"] == CLUSTERS for one in said.get("findings", ()))
    if warned and refused is not None and named(refused) == {CLUSTERS}:
        return ""  # check answers for clusters, too, and warns that this machine refuses it
    words = f"{seed} ({done}): check {code} {json.dumps(said)[:600]}; run {refused and refused.message[:600]}"
    if (refused.exit_code if refused else 0) != code or code == ExitCode.BUG:
        return words
    if refused is None or "findings" not in said:
        return "" if refused is None or refused.message == said["message"] else words
    errors = {one["rule"] for one in said["findings"] if one["severity"] == "error"}
    by_file = any(one["message"] in refused.message for one in said["findings"] if one["severity"] == "error")
    return "" if (named(refused) == errors if named(refused) else by_file) else words


@pytest.mark.parametrize("seed", range(0, MUTANTS, 9))
def test_check_and_run_agree_on_a_wrong_job(seed, tmp_path):
    assert disagreement(tmp_path / "job", seed, Counter()) == ""


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("load", [1, 2, 4, 8, 16])
def test_check_and_run_agree_on_two_hundred_wrong_jobs_at_any_load(load, tmp_path):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load - 1)]
    told: Counter[int] = Counter()
    try:
        found = [words for seed in range(MUTANTS) if (words := disagreement(tmp_path / str(seed), seed, told))]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert found == []
    assert told[ExitCode.CONFIG] + told[ExitCode.DATA] > MUTANTS / 2, told
