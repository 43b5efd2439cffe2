"""`areal export --to` with the real packages, offline: each is asked for what arrived, and has every figure once."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.run_summary import run_summary
from support.sources import ROOT
from support.tracked_run import EVALUATION, UID, evaluation_line, make_tracked_run, step_line

PYTHON = ROOT / ".cache" / "trackers" / "bin" / "python"
READ_BACK = Path(__file__).with_name("read_back.py")
STATES = {"wandb": 0, "mlflow": "FINISHED", "trackio": None}


@pytest.fixture(scope="session")
def trackers() -> None:
    """The environment of the packages, made once in the checkout."""
    subprocess.run(["tools/venv", "trackers"], cwd=ROOT, check=True, timeout=300)


@pytest.mark.component
@pytest.mark.parametrize(
    "tracker", [pytest.param(name, marks=() if name == "mlflow" else pytest.mark.nightly) for name in STATES]
)
def test_every_figure_arrives_once(tracker: str, tmp_path: Path, trackers: None) -> None:
    run = make_tracked_run(tmp_path / "digits")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(tracker.upper())}
    environment |= {
        "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "services"), "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(PYTHON), *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done

    def export() -> str:
        return python("-m", "areal.cli.main", "export", str(run), "--to", tracker, "--project", "math").stderr

    assert "sent 4 steps and evaluations" in export()
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(step_line(2, 9.0) + step_line(3, 0.5) + step_line(4, 0.625))  # 2 was trained again
    with (run / "evaluations.jsonl").open("a") as evaluations:
        evaluations.write(evaluation_line(4))
    (run / "summary.json").write_text(json.dumps(run_summary()))
    assert "sent 3 steps and evaluations" in export()
    assert "sent 0 steps and evaluations" in export()

    found = json.loads(python(str(READ_BACK), tracker, "math", UID, str(run / "tracking")).stdout)
    want: list[list[Any]] = []
    for step, reward in enumerate((0.0, 0.125, 0.25, 0.5, 0.625)):
        want += [["trainer/reward_mean", step, reward], ["trainer/tokens", step, 60], ["seconds/wait", step, 0.5]]
    odd = {"@": "_at_", "<": "_", ">": "_"} if tracker == "mlflow" else {}
    for version in (2, 4):
        want += [[name.translate(str.maketrans(odd)), version, value] for name, value in EVALUATION]
    assert sorted(found["figures"]) == sorted(want)
    assert str(found["config"]["algorithm.maxStaleness"]) == "2"
    assert "hunter2" not in json.dumps(found["config"])
    assert found["state"] == STATES[tracker]
