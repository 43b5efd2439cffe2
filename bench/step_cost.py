"""CPU of a step of the quickstart, beside that of an earlier commit: A B A B …, both by this environment.

    python bench/step_cost.py --base dafce389~1 [--pairs 5] [--steps 60]

The earlier sources are checked out beside these (a git worktree, removed at the end) and come first on the path of
every process. Each run is warmed up, then CPU seconds of all its processes are taken over the same steps. The spread of
each side's own runs says what a difference means.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import report
from bench_concurrency import cpu_s

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.job_run import JobRun  # noqa: E402

WARM_UP = 20
LIMIT = 1.03


def one(sources: Path, steps: int, folder: Path) -> dict[str, float]:
    """CPU seconds and seconds a step of one run of the job in `sources`, by role."""
    fixed = [f"algorithm.maxSteps={WARM_UP + steps + 5}", "evaluation.intervalSteps=1000", "evaluation.rows=2"]
    path = os.pathsep.join((str(sources / "services"), str(sources / "trainer")))
    run = JobRun(sources / "examples" / "quickstart.yaml", folder, fixed, environment={"PYTHONPATH": path}).start()
    try:
        run.wait_for("the warm-up", lambda: run.step() >= WARM_UP, timeout_s=600)
        began, before, at = run.step(), cpu_s(run), run.metrics()[-1]["at"]
        run.wait_for("the last step", lambda: run.step() >= began + steps, timeout_s=900)
        ended, after, until = run.step(), cpu_s(run), run.metrics()[-1]["at"]
        roles = {role: (after[role] - before[role]) / (ended - began) for role in after}
        return {"cpu_s": sum(roles.values()), "wall_s": (until - at) / (ended - began), **roles}
    finally:
        run.stop()


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--base", required=True, help="the earlier commit")
    made.add_argument("--pairs", type=int, default=5)
    made.add_argument("--steps", type=int, default=60)
    given = made.parse_args()
    seen: dict[str, list[dict[str, float]]] = {"now": [], "base": []}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(base), given.base], check=True)
        try:
            for pair in range(given.pairs):
                for name, sources in (("now", ROOT), ("base", base)):
                    found = one(sources, given.steps, Path(folder) / f"{name}-{pair}")
                    seen[name].append(found)
                    print(f"  {name:<5} {found['cpu_s']:.3f} CPU s, {found['wall_s']:.3f} s a step", flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(base)], check=True)
    middle = {
        name: {role: statistics.median(run[role] for run in runs) for role in runs[0]} for name, runs in seen.items()
    }
    print(f"\nstep cost  (load {os.getloadavg()[0]:.1f}, medians of {given.pairs} runs each, base {given.base})")
    for role, value in middle["now"].items():
        other = middle["base"][role]
        ratio = f"×{value / other:.2f}" if other else ""
        goal = f"   (≤ ×{LIMIT})" if role == "cpu_s" else ""
        print(f"  {role:<12}{other:>9.3f} → {value:>7.3f}  {ratio}{goal}")
    for name, runs in seen.items():
        values = [run["cpu_s"] for run in runs]
        print(f"  spread of {name}: {min(values):.3f} to {max(values):.3f}")
    report.write("step_cost", {"base": given.base, "load": os.getloadavg()[0], "runs": seen, "medians": middle})


if __name__ == "__main__":
    main()
