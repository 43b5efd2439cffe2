"""Recovery benchmark: time to a successor and the longest pause of training when a role is killed.

Each role of a small quickstart job is killed once with SIGKILL. The pause is the longest time between two trained steps
from the kill on; its limit is the same figure of a run in which nothing dies.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.job_run import SMALL, VICTIMS, JobRun  # noqa: E402

STEPS = 40
RESULTS = ROOT / "bench" / "results"


def longest_pause(run: JobRun, since: float) -> float:
    """Seconds between two trained steps, the worst from `since` (unix seconds) on."""
    times = sorted(float(row["at"]) for row in run.metrics())
    pauses = [b - a for a, b in pairwise(times) if b >= since]
    return max(pauses, default=0.0)


def one(role: str | None, folder: Path) -> dict[str, float | str]:
    """Kill `role` (None: nobody) at step 10; the run must end well."""
    overrides = [*SMALL, f"algorithm.maxSteps={STEPS}", "evaluation.intervalSteps=40"]
    run = JobRun(ROOT / "examples" / "quickstart.yaml", folder / (role or "nobody"), overrides).start()
    try:
        run.wait_for("step 10", lambda: run.step() >= 10, timeout_s=120)
        killed = time.time()
        successor = 0.0
        if role is not None:
            before = {process.pid for process in run.processes(*VICTIMS[role])}
            run.processes(*VICTIMS[role])[-1].kill()
            run.wait_for(
                "successor", lambda: bool({p.pid for p in run.processes(*VICTIMS[role])} - before), timeout_s=60
            )
            successor = time.time() - killed
        if run.finish(timeout_s=240) != 0:
            raise RuntimeError(f"the run with {role} killed failed:\n{run.output[-3000:]}")
        audit = run.audit()
        return {
            "role": role or "nobody",
            "successor_s": successor,
            "pause_s": longest_pause(run, killed),
            "lost": audit["lost"],
            "duplicated": audit["duplicated"],
        }
    finally:
        run.stop()


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'killed':<12} {'successor':>10} {'longest pause of training':>26} {'lost':>5} {'duplicated':>11}")
        for role in (None, *VICTIMS):
            row = one(role, Path(folder))
            rows.append(row)
            print(
                f"{row['role']:<12} {row['successor_s']:>8.1f} s {row['pause_s']:>24.1f} s"
                f" {row['lost']:>5} {row['duplicated']:>11}",
                flush=True,
            )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "recovery.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
