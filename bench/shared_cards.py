"""The quickstart on shared cards to its bar, with a kill in each phase of a turn: what it learns, loses and takes.

    .venv/bin/python bench/shared_cards.py [--engine embedded|sglang] [--weights SharedVolume|Auto] [--json FILE]

CPUs stand for the cards, and the lock of the cards says who has them. Needs what `make quickstart` makes.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
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


def measure(engine: str, weights: str, run: Path, kills: bool) -> dict[str, Any]:
    overrides = ["placement=shared", "algorithm.maxStaleness=1", f"weightSync.mode={weights}"]
    overrides += [f"generation.engine.type={engine}"] if engine != "embedded" else []
    command = [sys.executable, "-m", "areal.cli.main", "run", "examples/quickstart.yaml", *overrides]
    began, done = time.monotonic(), []
    with (run.parent / f"{run.name}.out").open("wb") as out:
        process = subprocess.Popen([*command, "--run-dir", str(run)], cwd=ROOT, stdout=out, stderr=out)
        try:
            for number, (role, when) in enumerate(KILLS if kills else ()):
                at = (number + 1) * STEPS // (len(KILLS) + 1)
                while steps_of(run) < at and process.poll() is None:
                    time.sleep(0.2)
                words = ENGINES[engine] if role == "engine" else VICTIMS[role]
                if kill(process, run, words, when):
                    done.append({"role": role, "phase": when, "step": steps_of(run)})
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(120)
    summary = json.loads((run / "summary.json").read_text())
    switches: dict[str, list[float]] = {"asleep": [], "awake": []}
    for to, seconds in _SWITCH.findall((run / "logs" / "generation-0.log").read_text()):
        switches[to].append(float(seconds))
    return {
        "engine": engine, "weights": weights, "exit": code, "status": summary["status"], "steps": summary["steps"],
        "wall_s": round(time.monotonic() - began, 1), "held_out": summary["heldOut"], "groups": summary["groups"],
        "restarts": summary["restarts"], "kills": done,
        "switch_s": {to: {"median": statistics.median(every), "most": max(every), "times": len(every)}
                     for to, every in switches.items() if every},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="embedded")
    parser.add_argument("--weights", choices=("SharedVolume", "Auto"), default="SharedVolume")
    parser.add_argument("--without-kills", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run-dir", type=Path)
    asked = parser.parse_args()
    run = asked.run_dir or Path(tempfile.mkdtemp(prefix="areal-shared-")) / "run"
    told = measure(asked.engine, asked.weights, run, not asked.without_kills)
    text = json.dumps(told, indent=1)
    if asked.json:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
