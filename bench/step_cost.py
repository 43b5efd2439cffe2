"""CPU of a step of the quickstart, beside that of an earlier commit: A B A B …, both by this environment.

    python bench/step_cost.py --base dafce389~1 [--pairs 5] [--steps 60]
    python bench/step_cost.py --where [--pairs 3] [--steps 60]     where a step's time goes, into docs/asynchrony.md

The earlier sources are checked out beside these (a git worktree, removed at the end) and come first on the path of
every process. Each run is warmed up, then CPU seconds of all its processes are taken over the same steps. The spread of
each side's own runs says what a difference means.

`--where` has the same job synchronous (`maxStaleness` 0) and asynchronous, in turns: of a step's wall time what the
trainer did in it, and of the time of all cores which role had them. What is left of the cores nobody of the run had.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import report
from bench_concurrency import cpu_s

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.job_run import JobRun  # noqa: E402

WARM_UP = 20
LIMIT = 1.03
PAGE = ROOT / "docs" / "asynchrony.md"
BEGIN, END = "<!-- where a step's time goes -->\n", "<!-- end of where -->"
PHASES = {
    "wait": "waits for its batch", "take": "reads and decodes it", "prox": "passes of π_prox", "train": "trains",
    "publish": "publishes", "checkpoint": "copies for a checkpoint",
}  # fmt: skip


def one(sources: Path, steps: int, folder: Path, *overrides: str) -> tuple[dict[str, float], dict[str, float]]:
    """CPU seconds and seconds a step of one run of the job in `sources`, by role; the trainer's seconds by phase."""
    fixed = [f"algorithm.maxSteps={WARM_UP + steps + 5}", "evaluation.intervalSteps=1000", "evaluation.rows=2"]
    fixed += overrides
    path = os.pathsep.join((str(sources / "services"), str(sources / "trainer")))
    run = JobRun(sources / "examples" / "quickstart.yaml", folder, fixed, environment={"PYTHONPATH": path}).start()
    try:
        run.wait_for("the warm-up", lambda: run.step() >= WARM_UP, timeout_s=600)
        began, before, at = run.step(), cpu_s(run), run.metrics()[-1]["at"]
        run.wait_for("the last step", lambda: run.step() >= began + steps, timeout_s=900)
        ended, after, until = run.step(), cpu_s(run), run.metrics()[-1]["at"]
        roles = {role: (after[role] - before[role]) / (ended - began) for role in after}
        rows = [row for row in run.metrics() if began <= row["step"] < ended]
        phases = {name: statistics.mean(row["seconds"].get(name, 0.0) for row in rows) for name in rows[0]["seconds"]}
        return {"cpu_s": sum(roles.values()), "wall_s": (until - at) / (ended - began), **roles}, phases
    finally:
        run.stop()


def where(pairs: int, steps: int) -> None:
    """Both loops in turns; the block of the page."""
    loops: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {"synchronous": [], "asynchronous": []}
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            for name, runs in loops.items():
                own = ["algorithm.maxStaleness=0"] if name == "synchronous" else []
                runs.append(one(ROOT, steps, Path(folder) / f"{name}-{pair}", *own))
                print(f"  {name}: {runs[-1]}", flush=True)
    walls = {name: statistics.median(cost["wall_s"] for cost, _ in runs) for name, runs in loops.items()}
    cores = len(os.sched_getaffinity(0))
    lines = [
        f"{pairs} runs of each, {steps} steps of the quickstart, on {cores} cores (load {os.getloadavg()[0]:.1f}); "
        "seconds a step, medians:",
        "",
        "| | synchronous | asynchronous |",
        "| --- | ---: | ---: |",
    ]

    def line(what: str, of: Callable[[dict[str, float], dict[str, float]], float]) -> None:
        cells = [statistics.median(of(*run) for run in runs) for runs in loops.values()]
        lines.append(f"| {what} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")

    line("**a step**", lambda cost, _: cost["wall_s"])
    phases = dict.fromkeys(name for runs in loops.values() for _, told in runs for name in told)
    for phase in phases:
        line(f"trainer: {PHASES.get(phase, phase)}", lambda _, told, phase=phase: told.get(phase, 0.0))
    line("trainer: the rest", lambda cost, told: cost["wall_s"] - sum(told.values()))
    line(f"**all {cores} cores**", lambda cost, _: cores * cost["wall_s"])
    for role in loops["synchronous"][0][0]:
        if role not in ("cpu_s", "wall_s"):
            line(f"of them: {role}", lambda cost, _, role=role: cost[role])
    line("of them: nobody of the run", lambda cost, _: cores * cost["wall_s"] - cost["cpu_s"])
    print(f"synchronous over asynchronous: {walls['synchronous'] / walls['asynchronous']:.2f}")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--base", help="the earlier commit")
    made.add_argument("--where", action="store_true", help="where a step's time goes")
    made.add_argument("--pairs", type=int, default=5)
    made.add_argument("--steps", type=int, default=60)
    given = made.parse_args()
    if given.where:
        where(given.pairs, given.steps)
        return
    if not given.base:
        made.error("name an earlier commit: --base, or --where")
    seen: dict[str, list[dict[str, float]]] = {"now": [], "base": []}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(base), given.base], check=True)
        try:
            for pair in range(given.pairs):
                for name, sources in (("now", ROOT), ("base", base)):
                    found, _ = one(sources, given.steps, Path(folder) / f"{name}-{pair}")
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
