"""A whole GRPO run of the quickstart's size: the trainer on the card, the embedded engine on the host's cores."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml
from areal_trainer.init_model import init_model

from gpu_proof.cell import Measuring, NotTried

STEPS, GROUPS, SIZE = 6, 16, 8
RUN_S = 240.0
KILLED_AFTER = 2  # steps
# A question that any model answers right about half of the time, so that every group teaches something.
RECIPE = (
    "def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return float(sum(completion_ids) % 2)\n"
)


def job(place: Path, *, gpus: int) -> Path:
    """The job file, its data, its recipe and its model of a million parameters, below `place`."""
    place.mkdir(parents=True, exist_ok=True)
    model = init_model(place / "model").path
    for name in ("train", "heldout"):
        rows = [json.dumps({"prompt": f"{1000 + 37 * number}="}) for number in range(256)]
        (place / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    (place / "recipe.py").write_text(RECIPE)
    spec: dict[str, Any] = {
        "model": {"path": str(model)},
        "recipe": {"file": "recipe.py"},
        "dataset": {"train": {"jsonl": "train.jsonl"}},
        "rollout": {"maxSampleTokens": 24, "maxConcurrentRollouts": 48, "sampling": {"maxNewTokens": 8}},
        "generation": {"engine": {"type": "embedded"}},
        "algorithm": {"name": "GRPO", "groupSize": SIZE, "batchSize": GROUPS, "maxSteps": STEPS},
        "optimizer": {"learningRate": 1e-4},
        "checkpoint": {"intervalSteps": 1, "keep": 2},
    }
    if gpus:
        spec["trainer"] = {"gpus": gpus}
    head = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "proof"}}
    path = place / "job.yaml"
    path.write_text(yaml.safe_dump({**head, "spec": spec}))
    return path


class Run:
    """One `areal run`, watched through its directory."""

    def __init__(self, file: Path, directory: Path) -> None:
        self.directory = directory
        self._out = directory.with_suffix(".out")
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "areal.cli.main", "run", str(file), "--run-dir", str(directory)],
                cwd=file.parent, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"},
            )  # fmt: skip

    def metrics(self) -> list[dict[str, Any]]:
        """Of the steps so far."""
        path = self.directory / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def kill_trainer(self, after: int) -> int:
        """SIGKILL the trainer once so many steps are trained; its process id."""
        deadline = time.monotonic() + RUN_S
        while len(self.metrics()) < after:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the run didn't reach step {after}: {self.last_words()}")
            time.sleep(0.05)
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "areal_trainer.main" in " ".join(child.cmdline()):
                child.send_signal(signal.SIGKILL)
                return int(child.pid)
        raise RuntimeError("the run has no trainer")

    def problems(self) -> list[str]:
        """Wait for the end; what an audit of the ledger and the run's summary have to say."""
        code = self._ended()
        if code:
            return [f"the run ended with {code}: {self.last_words()}; its trainer: {self._log_of_trainer()}"]
        summary = json.loads((self.directory / "summary.json").read_text())
        groups, found = summary["groups"], []
        if summary["steps"] != STEPS or groups["trained"] != STEPS * GROUPS:
            found.append(f"{summary['steps']} steps trained {groups['trained']} groups")
        found += [f"{groups[kind]} groups {kind}" for kind in ("lost", "duplicated") if groups[kind]]
        audit = subprocess.run(
            [sys.executable, "-m", "areal.cli.main", "audit", str(self.directory), "--json"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return found + ([f"the audit: {(audit.stdout + audit.stderr)[-500:]}"] if audit.returncode else [])

    def _ended(self) -> int:
        try:
            return self.process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            self.process.wait(60)
            return -1

    def _log_of_trainer(self) -> str:
        logs = sorted((self.directory / "logs").glob("trainer*"))
        return "".join(path.read_text(errors="replace")[-1000:] for path in logs)

    def last_words(self) -> str:
        return self._out.read_text(errors="replace").strip()[-500:]


def loop(proof: Measuring) -> None:
    """The cell: a run, and one whose trainer is killed."""
    if not shutil.which("redis-server"):
        raise NotTried("no redis-server")
    file = job(proof.work / "job", gpus=1 if proof.cuda else 0)
    run = Run(file, proof.work / "clean")
    found = run.problems()
    rows = run.metrics()
    seconds = [row["wall_s"] for row in rows]
    proof.measured("loop-clean", len(found), problems=found, step_s=statistics.median(seconds) if seconds else None)
    gaps = [row["logprob_mismatch"] for row in rows if row.get("logprob_mismatch") is not None]
    proof.measured("loop-mismatch", max(gaps, default=float("nan")))
    killed = Run(file, proof.work / "killed")
    victim = killed.kill_trainer(KILLED_AFTER)
    found = killed.problems()
    if not any(row["step"] >= KILLED_AFTER for row in killed.metrics()):
        found.append("no step after the kill")
    proof.measured("loop-killed", len(found), problems=found, killed=victim)


FUNCTIONS = {"loop": loop}
