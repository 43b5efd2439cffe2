"""The quickstart on shared cards to its bar, with a kill in each phase of a turn: what it learns, loses and takes.

    .venv/bin/python bench/shared_cards.py [--engine embedded|sglang] [--weights SharedVolume|Auto] [--json FILE]
    SGLANG_PYTHON=… python bench/shared_cards.py --gpus 1 --engine sglang --weights Auto model.path=DIRECTORY

CPUs stand for the cards unless `--gpus` says how many are here, and the lock of the cards says who has them. Needs what
`make quickstart` makes; further words are overrides of the quickstart's job. With a card its memory is written down,
twice a second, beside who had it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
VICTIMS = {
    "trainer": ("areal_trainer.main", "--job"),
    "agent": ("areal.processes.role", "generation"),
    "controller": ("areal.processes.role", "controller"),
}
ENGINES = {"embedded": ("areal.engine.main",), "sglang": ("areal.engine.sglang_cpu",)}
ON_CARDS = {"sglang": ("sglang.launch_server",)}
KILLS = (
    ("trainer", "training"), ("engine", "serving"), ("agent", "switching"), ("engine", "training"),
    ("controller", "training"), ("trainer", "serving"), ("agent", "serving"),
)  # fmt: skip
STEPS = 160
_SWITCH = re.compile(r"(asleep|awake) after ([0-9.]+) s")


def has_cards(run: Path, side: str) -> bool:
    """Whether somebody of a side holds the lock."""
    try:
        descriptor = os.open(run / "cards" / side, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def phase(run: Path) -> str:
    return next((side for side in ("training", "serving") if has_cards(run, side)), "switching")


def steps_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return max((int(json.loads(line)["step"]) + 1 for line in lines if line.endswith("\n")), default=0)


def kill(process: subprocess.Popen[bytes], run: Path, words: tuple[str, ...], when: str) -> bool:
    """Kill a process when the cards are where they are to be; False when that never came."""
    until = time.monotonic() + 180
    while time.monotonic() < until and process.poll() is None:
        if phase(run) == when:
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    if all(word in " ".join(child.cmdline()) for word in words):
                        child.kill()
                        return True
                except psutil.Error:
                    continue
        time.sleep(0.02)
    return False


class CardMemory:
    """MiB of the first card that are taken, by who has the cards; sampled twice a second until `stop`."""

    def __init__(self, run: Path) -> None:
        self.rows: dict[str, list[int]] = {}
        self._run, self._over = run, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        while not self._over.wait(0.5):
            before = phase(self._run)
            with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
                used = int(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout)
                if phase(self._run) == before:
                    self.rows.setdefault(before, []).append(used)

    def stop(self) -> dict[str, dict[str, float]]:
        """Median, most and count of each phase."""
        self._over.set()
        self._thread.join()
        return {
            side: {"median": statistics.median(found), "most": max(found), "times": len(found)}
            for side, found in self.rows.items()
        }


def measure(
    engine: str, weights: str, run: Path, kills: bool, gpus: int, more: list[str], steps: int = STEPS
) -> dict[str, Any]:
    overrides = ["placement=shared", "algorithm.maxStaleness=1", f"weightSync.mode={weights}"]
    overrides += [f"generation.engine.type={engine}"] if engine != "embedded" else []
    overrides += [f"trainer.gpus={gpus}"] if gpus else []
    overrides += [f"algorithm.maxSteps={steps}", *more]
    engines = ON_CARDS if gpus else ENGINES
    command = [sys.executable, "-m", "areal.cli.main", "run", "examples/quickstart.yaml", *overrides]
    began, done = time.monotonic(), []
    with (run.parent / f"{run.name}.out").open("wb") as out:
        process = subprocess.Popen([*command, "--run-dir", str(run)], cwd=ROOT, stdout=out, stderr=out)
        memory = CardMemory(run) if gpus else None
        try:
            for number, (role, when) in enumerate(KILLS if kills else ()):
                at = (number + 1) * steps // (len(KILLS) + 1)
                while steps_of(run) < at and process.poll() is None:
                    time.sleep(0.2)
                words = engines[engine] if role == "engine" else VICTIMS[role]
                if kill(process, run, words, when):
                    done.append({"role": role, "phase": when, "step": steps_of(run)})
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(120)
    return {
        "engine": engine, "weights": weights, "gpus": gpus, "overrides": more, "card_MiB": memory and memory.stop(),
        "exit": code, "wall_s": round(time.monotonic() - began, 1), "kills": done, **read(run),
    }  # fmt: skip


def read(run: Path) -> dict[str, Any]:
    """What a run's directory tells: of its summary where it has one, else of its steps so far."""
    switches: dict[str, list[float]] = {"asleep": [], "awake": []}
    for to, seconds in _SWITCH.findall((run / "logs" / "generation-0.log").read_text()):
        switches[to].append(float(seconds))
    steps = [
        json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True) if line[-1] == "\n"
    ]
    held = [json.loads(line)["mean"] for line in (run / "evaluations.jsonl").read_text().splitlines()]
    told: dict[str, Any] = {
        "status": "cut off", "steps": len({row["step"] for row in steps}),
        "held_out": {"first": held[0], "best": max(held), "last": held[-1]},
    }  # fmt: skip
    if (summary := run / "summary.json").exists():
        ended = json.loads(summary.read_text())
        told |= {"status": ended["status"], "steps": ended["steps"], "held_out": ended["heldOut"]}
        told |= {"groups": ended["groups"], "restarts": ended["restarts"]}
    audit = subprocess.run(
        [sys.executable, "-m", "areal.cli.main", "audit", str(run)], cwd=ROOT, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    said = (audit.stdout + audit.stderr).splitlines()
    told["audit"] = next((line.split("verdict")[1].strip() for line in said if line.startswith("verdict")), said[-1:])
    told["step_s"] = statistics.median([row["wall_s"] for row in steps])
    told["switch_s"] = {
        to: {"median": statistics.median(every), "most": max(every), "times": len(every)}
        for to, every in switches.items() if every
    }  # fmt: skip
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="embedded")
    parser.add_argument("--weights", choices=("SharedVolume", "Auto"), default="SharedVolume")
    parser.add_argument("--without-kills", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--read", type=Path, help="a run's directory: say what it tells, and run nothing")
    asked = parser.parse_args()
    if asked.read:
        print(json.dumps(read(asked.read), indent=1))
        return
    run = asked.run_dir or Path(tempfile.mkdtemp(prefix="areal-shared-")) / "run"
    told = measure(asked.engine, asked.weights, run, not asked.without_kills, asked.gpus, asked.overrides, asked.steps)
    text = json.dumps(told, indent=1)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
