"""A recorded run and the page over it, without a network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from areal.ledger.journal import Journal
from areal.record.episode_ends import write_ends
from areal_view.pages.app import make_app
from areal_view.pages.runs import Runs
from playwright.sync_api import Browser, sync_playwright
from starlette.testclient import TestClient
from support.recorded_run import RecordedRun, made_sample, sample_frame

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
KEY, PORT = "the-key", 4321
STEPS = 4


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedRun:
    """Four steps, an evaluation, a job file; it has ended."""
    run = RecordedRun(tmp_path / "runs" / "digits")
    for step in range(STEPS):
        run.train(step)
    for row in range(3):
        made = made_sample(row, 0, seed=5)
        made.evaluation_id = "2.f1-ab"
        run.append("trajectories", "worker-0-1-000000", sample_frame(made))
    spec = {
        "algorithm": {"maxSteps": STEPS, "maxStaleness": 2, "batchSize": 3},
        "model": {"path": "models/<b>digits</b>"},
        "rollout": {"order": "deadline"},
    }
    (run.root / "resolved.json").write_text(json.dumps({"job": {"spec": spec}}))
    (run.root / "metrics.jsonl").write_text("".join(json.dumps(metrics(step)) + "\n" for step in range(STEPS)))
    evaluation = {
        "name": "2.f1-ab", "version": 2, "mean": 0.5, "rows": 3, "failed_rows": 0, "avg@4": 0.25, "pass@4": 0.75,
        "sets": {"<hard>": {"rows": 1, "mean": 0.125, "avg@4": 0.0, "pass@4": 0.0}},
    }  # fmt: skip
    (run.root / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    journal = Journal(run.root / "journal" / "controller.jsonl")
    journal.start(1)
    for step in range(STEPS):
        journal.append_batch(step, range(step * run.batch, (step + 1) * run.batch))
    journal.close()
    write_ends(run.root / "journal", 1, {"complete": 970, "infra": 30})
    (run.root / "summary.json").write_text(json.dumps({"status": "Complete", "steps": STEPS}))
    return run


def metrics(step: int) -> dict[str, object]:
    """A row of the trainer."""
    return {
        "step": step, "reward_mean": step / 10, "staleness_mean": 0.5, "staleness_max": 1, "tokens_per_s": 900.0,
        "entropy": 1.0, "grad_norm": 2.0, "loss": 0.1, "zero_variance_groups": 1, "groups": 3, "tokens": 60,
        "wall_s": 2.0, "seconds": {"wait": 0.5}, "at": 102.0 + 2 * step, "logprob_mismatch": None,
        "behaviour_gap": 0.01,
    }  # fmt: skip


@pytest.fixture
def page(recorded: RecordedRun, tmp_path: Path) -> Iterator[TestClient]:
    """A browser without JavaScript that has the key."""
    runs = Runs([tmp_path / "runs"], tmp_path / "cache")
    with TestClient(make_app(runs, key=KEY, port=PORT), base_url=f"http://127.0.0.1:{PORT}") as client:
        client.get(f"/?key={KEY}")
        yield client
    runs.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Not beyond a module: its event loop would run beside those of other tests."""
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def address(recorded: RecordedRun) -> Iterator[str]:
    """What `areal view` prints."""
    command = [sys.executable, "-m", "areal.cli.main", "view", str(recorded.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        process.wait(20)
