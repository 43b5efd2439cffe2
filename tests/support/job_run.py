"""Runs whole jobs for tests: `areal run` as a child process, watched through its run directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]

SMALL = [  # a job of the quickstart's shape that ends in seconds
    "algorithm.batchSize=16",
    "algorithm.maxSteps=24",
    "rollout.maxConcurrentRollouts=48",
    "evaluation.intervalSteps=12",
    "evaluation.rows=50",
    "checkpoint.intervalSteps=4",
]

# words of the command line of each process that may die
VICTIMS = {
    "redis": ("redis-server",),
    "controller": ("areal.processes.role", "controller"),
    "worker": ("areal.processes.role", "worker"),
    "agent": ("areal.processes.role", "generation"),
    "engine": ("areal.engine.main",),
    "reward": ("areal.processes.role", "reward-custom"),
    "trainer": ("areal_trainer.main", "--job"),
}


@dataclass
class JobRun:
    """One `areal run`. `finish` waits for its end; `stop` makes sure that nothing is left, whatever happened."""

    job: Path
    run_dir: Path
    overrides: list[str] = field(default_factory=list)
    resume: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher: Sequence[str] = ("-m", "areal.cli.main")
    process: subprocess.Popen[bytes] | None = None
    _read: int = 0  # bytes of the metrics that are known
    _step: int = 0

    def start(self) -> JobRun:
        flags = ["--run-dir", str(self.run_dir), *(["--resume"] if self.resume else [])]
        command = [sys.executable, *self.launcher, "run", str(self.job), *self.overrides, *flags]
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)
        with (self.run_dir.parent / f"{self.run_dir.name}.out").open("ab") as out:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env={**os.environ, "NO_COLOR": "1", **self.environment},
            )  # fmt: skip
        return self

    @property
    def output(self) -> str:
        return (self.run_dir.parent / f"{self.run_dir.name}.out").read_text(errors="replace")

    def metrics(self) -> list[dict[str, Any]]:
        """The trainer's metrics so far, one entry a line; a torn last line is left out."""
        path = self.run_dir / "metrics.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def step(self) -> int:
        """Batches trained so far. Reads what was added since it was last asked: it is asked all the time."""
        path = self.run_dir / "metrics.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
            self._read += len(whole) + 1 if whole else 0
            steps = [int(json.loads(line)["step"]) + 1 for line in whole.splitlines()]
            self._step = max([self._step, *steps])
        return self._step

    def wait_for(self, what: str, ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `ready()`; fails with the run's output when the run ends first or time is up."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended ({self.process.returncode}) before {what}:\n{self.output[-6000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {what} within {timeout_s} s:\n{self.output[-6000:]}")
            time.sleep(0.1)

    def processes(self, *words: str) -> list[psutil.Process]:
        """Descendants whose command line holds all `words`."""
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                line = " ".join(child.cmdline())
                if "AREAL_STANDBY" in child.environ() and child.name() != "areal-trainer":
                    continue  # a standby of the trainer, with the same command
            except psutil.Error:
                continue
            if all(word in line for word in words):
                found.append(child)
        return found

    def standby(self) -> bool:
        """Whether a standby of the trainer has done its imports and waits."""
        assert self.process is not None
        return any(
            child.name() == "areal-standby" for child in psutil.Process(self.process.pid).children(recursive=True)
        )

    def kill(self, *words: str) -> int:
        """SIGKILL the first descendant whose command line holds `words`; returns its pid."""
        victims = self.processes(*words)
        assert victims, f"no process with {words} in its command line"
        victims[0].send_signal(signal.SIGKILL)
        return victims[0].pid

    def finish(self, timeout_s: float) -> int:
        """Wait for the end; returns the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"the run did not end within {timeout_s} s:\n{self.output[-6000:]}") from None

    def stop(self) -> None:
        """End the run and all its descendants."""
        if self.process is None or self.process.poll() is not None:
            return
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait(60)
        for child in family:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue

    def summary(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return loaded

    def audit(self, *flags: str) -> dict[str, Any]:
        """What `areal audit --json` says; fails when it finds anything wrong."""
        done = subprocess.run(
            [sys.executable, "-m", "areal.cli.main", "audit", str(self.run_dir), "--json", *flags],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report
