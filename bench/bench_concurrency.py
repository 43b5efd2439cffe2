"""Concurrency benchmark: what a step of the quickstart costs with 128, 256 and 1,024 groups in flight.

The same work a step whatever is in flight, so time and CPU a step should be the same: beyond what the engine can run at
once, more groups only wait. Measured once the pipeline is full, over all processes of the run, in alternating rounds,
because other load on the machine changes between runs. CPU is the figure to compare where the machine is shared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import report  # noqa: E402
from support.job_run import VICTIMS, JobRun  # noqa: E402

IN_FLIGHT = (128, 256, 1024)  # groups
BATCH = 64
SAME_WITHIN = 1.10
JOB = [
    f"algorithm.batchSize={BATCH}",
    f"algorithm.maxStaleness={max(IN_FLIGHT) // BATCH + 1}",  # so that the gate lets so many be in flight
    "optimizer.learningRate=1e-12",  # answers of one length from the first step to the last
    "algorithm.maxSteps=1000",
    "evaluation.intervalSteps=1000",
    "evaluation.rows=2",
    "checkpoint.intervalSteps=20",
]


def cpu_s(run: JobRun) -> dict[str, float]:
    """CPU seconds of each role so far."""
    found = {}
    for role, words in VICTIMS.items():
        times = [process.cpu_times() for process in run.processes(*words)]
        found[role] = sum(one.user + one.system + one.children_user + one.children_system for one in times)
    return found


def one(in_flight: int, steps: int, folder: Path) -> dict[str, float]:
    """One run; seconds and CPU a step between two steps of a full pipeline."""
    run = JobRun(
        ROOT / "examples" / "quickstart.yaml", folder, [*JOB, f"rollout.maxConcurrentRollouts={in_flight}"]
    ).start()
    first = max(IN_FLIGHT) // BATCH + 4
    try:
        run.wait_for("a full pipeline", lambda: run.step() >= first, timeout_s=600)
        began, before, at = run.step(), cpu_s(run), run.metrics()[-1]["at"]
        run.wait_for("the last step", lambda: run.step() >= began + steps, timeout_s=600)
        ended, after, until = run.step(), cpu_s(run), run.metrics()[-1]["at"]
        roles = {role: 1000 * (after[role] - before[role]) / (ended - began) for role in after}
        return {"wall_ms": 1000 * (until - at) / (ended - began), "cpu_ms": sum(roles.values()), **roles}
    finally:
        run.stop()


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--steps", type=int, default=30, help="measured in each run")
    made.add_argument("--rounds", type=int, default=3)
    arguments = made.parse_args()
    seen: dict[int, list[dict[str, float]]] = {in_flight: [] for in_flight in IN_FLIGHT}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for in_flight in IN_FLIGHT:
                run_dir = Path(folder) / f"{number}-{in_flight}"
                seen[in_flight].append(one(in_flight, arguments.steps, run_dir))
                print(f"  round {number + 1}, {in_flight} groups: {seen[in_flight][-1]['wall_ms']:.0f} ms", flush=True)
    rows = {
        in_flight: {name: statistics.median(one[name] for one in runs) for name in runs[0]}
        for in_flight, runs in seen.items()
    }
    least = rows[IN_FLIGHT[0]]
    print(f"\nconcurrency  (load {os.getloadavg()[0]:.1f}, medians of {arguments.rounds} rounds)")
    print(f"  {'groups':>8} {'wall':>16} {'CPU':>16}   CPU by role, ms a step (≤ ×{SAME_WITHIN:.2f} is the same)")
    for in_flight, row in rows.items():
        each = ", ".join(f"{role} {row[role]:.0f}" for role in VICTIMS)
        ratios = [f"{row[name]:>6.0f} ms ×{row[name] / least[name]:.2f}" for name in ("wall_ms", "cpu_ms")]
        print(f"  {in_flight:>8} {ratios[0]:>16} {ratios[1]:>16}   {each}")
    report.write("concurrency", {"load": os.getloadavg()[0], "groups": rows, "same_within": SAME_WITHIN})


if __name__ == "__main__":
    main()
