"""Predictions of `areal why --slow` against runs: one change is foretold from a run's own constants, then really made.

Tokens and updates take a fixed time each (`paced/sitecustomize.py`), so that what is compared is the model of queue,
gate and trainer and not the machine's other load; both are long beside what the processes compute. A prediction is what
the base run's model makes of a change; the changed job is then run, and the two rates are compared.

python bench/whatif.py [--steps 24] [--only NAME …] [--keep DIR]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

import report  # noqa: E402
from areal_view.pages.runs import ShownRun  # noqa: E402
from areal_view.pages.slow import time_page  # noqa: E402
from areal_view.why.pace import Constants, step_s  # noqa: E402
from support.job_run import ROOT, JobRun  # noqa: E402

TOKEN_S, UPDATE_S = 0.1, 1.5
WARM_UP = 4  # steps that are left out: processes start, the first batches find no queue
GOAL = 0.10
PATIENCE_S = 900.0
BASE = {
    "algorithm.groupSize": 4, "algorithm.batchSize": 4, "algorithm.maxStaleness": 2, "optimizer.learningRate": 1e-6,
    "rollout.maxConcurrentRollouts": 16, "generation.engine.maxRunningRequests": 4, "generation.replicas": 1,
    "evaluation.intervalSteps": 100_000, "evaluation.rows": 1, "checkpoint.intervalSteps": 100_000,
    "algorithm.maxSteps": 100_000,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A job, and a change of it. `constants`: what the change is in the model's terms."""

    name: str
    change: dict[str, Any]
    constants: dict[str, Any]
    base: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("servers 1 → 2", {"generation.replicas": 2}, {"servers": 2}),
    Case("maxStaleness 2 → 0", {"algorithm.maxStaleness": 0}, {"ahead": 0, "staleness": 0}),
    Case("maxStaleness 2 → 4", {"algorithm.maxStaleness": 4, "rollout.maxConcurrentRollouts": 32},
         {"ahead": 2, "staleness": 4, "max_concurrent": 32}),
    Case("ahead 1 → 2", {"rollout.ahead": 2}, {"ahead": 2}),
    Case("maxConcurrentRollouts 16 → 32", {"rollout.maxConcurrentRollouts": 32}, {"max_concurrent": 32}),
)  # fmt: skip


def measured(job: dict[str, Any], steps: int, root: Path) -> tuple[float, Constants]:
    """Seconds of a step of this job, and the constants that its recording tells."""
    overrides = [f"{name}={value}" for name, value in {**BASE, **job}.items()]
    paths = os.pathsep.join(filter(None, (str(HERE / "paced"), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": paths, "PACED_TOKEN_S": str(TOKEN_S), "PACED_UPDATE_S": str(UPDATE_S)}
    run = JobRun(ROOT / "examples/quickstart.yaml", root, overrides, environment=environment).start()
    try:  # it is cut off: towards its end a run has no groups left to generate
        run.wait_for(f"step {steps}", lambda: run.step() >= steps, PATIENCE_S)
    finally:
        run.stop()
    rows = run.metrics()
    kept = rows[WARM_UP:]
    seconds = (kept[-1]["at"] - rows[WARM_UP - 1]["at"]) / len(kept)
    page = time_page(ShownRun("bench", root, root / "index"), len(kept))
    assert page is not None
    return seconds, page.constants


def compare(cases: Sequence[Case], steps: int, root: Path) -> list[dict[str, Any]]:
    """The base is run once for each base; each change once."""
    known: dict[str, tuple[float, Constants]] = {}

    def run(name: str, job: dict[str, Any]) -> tuple[float, Constants]:
        key = str(sorted(job.items()))
        if key not in known:
            known[key] = measured(job, steps, root / f"run-{len(known)}")
            print(f"  {name}: {known[key][0]:.2f} s a step, its model {step_s(known[key][1]):.2f} s", flush=True)
        return known[key]

    found = []
    for case in cases:
        now_s, constants = run("base", case.base)
        then_s, _ = run(case.name, {**case.base, **case.change})
        predicted = step_s(constants) / step_s(replace(constants, **case.constants))
        found.append({
            "change": case.name, "base_s": now_s, "base_model_s": step_s(constants), "changed_s": then_s,
            "predicted": predicted - 1.0, "real": now_s / then_s - 1.0, "error": predicted / (now_s / then_s) - 1.0,
        })  # fmt: skip
    return found


def main() -> None:
    """Run, print, write `bench/results/whatif.json`."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--steps", type=int, default=24)
    made.add_argument("--only", nargs="*", default=[case.name for case in CASES], help="names of changes")
    made.add_argument("--keep", type=Path, help="a folder for the runs, kept")
    asked = made.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = compare([case for case in CASES if case.name in asked.only], asked.steps, asked.keep or Path(temporary))
    print(f"\nwhat one change brings  (load {os.getloadavg()[0]:.1f})")
    print(f"  {'change':<32} {'predicted':>10} {'real':>8} {'error':>8}")
    for row in rows:
        missed = "" if abs(row["error"]) <= GOAL else "  MISSED"
        print(f"  {row['change']:<32} {row['predicted']:>+10.0%} {row['real']:>+8.0%} {row['error']:>+8.1%}{missed}")
    report.write("whatif", {"load": os.getloadavg()[0], "goal": GOAL, "steps": asked.steps, "changes": rows})


if __name__ == "__main__":
    main()
