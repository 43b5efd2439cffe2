"""Hostile runs: whole small jobs under drawn settings and drawn faults, each proven by `areal audit`.

    python bench/hostile.py [--runs 34] [--seed 0] [--minutes 60]  a line of JSON a run; goes on where it was
    python bench/hostile.py --table                                the block of docs/recovery.md

A seed draws the bound and how far generation runs ahead of it, the order of training, the sizes of group and batch, how
many workers and servers there are, how often is published and saved; and what befalls the run: kills and stops of
roles, a change of live fields, the death of the whole run with a torn last record, gone on with by --resume. A run is
whole when it ends by itself. It must have lost nothing, trained nothing twice, and no token older than its bound.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
sys.path.append(str(ROOT / "bench"))

import psutil  # noqa: E402
from chaos import audit, read  # noqa: E402
from chaos_faults import cut_off, kill, stopped, tear  # noqa: E402
from support.job_run import VICTIMS, JobRun  # noqa: E402

OUT = ROOT / "bench" / "results" / "hostile.jsonl"
PAGE = ROOT / "docs" / "recovery.md"
BEGIN, END = "<!-- hostile runs: bench/hostile.py --table -->\n", "<!-- end of hostile runs -->"
STEPS = 24
LEADS = ((0, 0), (1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (4, 8))  # ahead, bound
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Plan:
    """One run: its job's fields, and before which step what happens."""

    seed: int
    fields: dict[str, Any]
    faults: tuple[tuple[int, str, str], ...]  # step, kind, of whom

    @property
    def overrides(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.fields.items()]


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(f"hostile {seed}")
    ahead, bound = LEADS[seed % len(LEADS)]
    by_index = bound > 0 and draw.random() < 0.2
    fields: dict[str, Any] = {
        "seed": seed,
        "algorithm.maxSteps": STEPS,
        "algorithm.maxStaleness": bound,
        "algorithm.batchSize": draw.choice((8, 16)),
        "algorithm.groupSize": draw.choice((2, 4, 8)),
        "algorithm.zeroVariance": draw.choice(("keep", "mask", "filter")),
        "rollout.order": "admission" if by_index else "deadline",
        "rollout.workers": draw.choice((1, 1, 2)),
        "rollout.maxConcurrentRollouts": draw.choice((16, 32, 96)),
        "generation.replicas": draw.choice((1, 1, 2)),
        "weightSync.intervalSteps": draw.randint(1, min(2, ahead + 1)),
        "checkpoint.intervalSteps": draw.randint(1, 5),
        "evaluation.intervalSteps": draw.choice((6, 1000)),
        "evaluation.rows": 20,
    }
    if not by_index:
        fields["rollout.ahead"] = ahead
    if bound == 0 and draw.random() < 0.5:
        fields["rollout.rounds"] = "byHistory"
    kinds = ["kill"] * 4 + ["stop"] * 2 + ["torn", "set"]
    faults = []
    for step in sorted(draw.sample(range(2, STEPS - 2), draw.randint(3, 6))):
        kind = draw.choice(kinds)
        whom = {"torn": draw.choice(("journal", "evidence", "store")), "set": "maxStaleness"}.get(kind)
        faults.append((step, kind, whom or draw.choice(list(VICTIMS))))
    return Plan(seed, fields, tuple(faults))


def play(plan: Plan, folder: Path) -> dict[str, Any]:
    """The run of a plan, to its own end; returns its row."""
    draw = random.Random(f"moments {plan.seed}")
    began = time.monotonic()
    run = JobRun(ROOT / "examples" / "quickstart.yaml", folder / "run", plan.overrides).start()
    bound, done = plan.fields["algorithm.maxStaleness"], list[tuple[int, str, str]]()
    try:
        for step, kind, whom in plan.faults:
            run.wait_for(f"step {step}", lambda least=step: run.step() >= least, PATIENCE_S)  # type: ignore[misc]
            time.sleep(draw.uniform(0, 1))
            if kind == "set":
                if not changed(run, bound + 1):
                    continue
                bound += 1
            else:
                try:
                    hurt(run, kind, whom, draw)
                except psutil.NoSuchProcess:  # the process, or the whole run, has just ended by itself
                    continue
            done.append((step, kind, whom))
        code = run.finish(PATIENCE_S)
    finally:
        run.stop()
    told = audit(run)
    return {
        "seed": plan.seed, "fields": plan.fields, "faults": done, "code": code, "bound": bound,
        "seconds": round(time.monotonic() - began, 1), "date": datetime.now(UTC).isoformat()[:19], **told,
    }  # fmt: skip


def hurt(run: JobRun, kind: str, whom: str, draw: random.Random) -> None:
    """Kill or stop a role, or kill the whole run, tear a record and go on with it."""
    if kind == "kill":
        kill(run, whom)
    elif kind == "stop":
        with stopped(run, whom):
            time.sleep(draw.uniform(0.5, 6))
    else:
        cut_off(run)
        tear(run, whom, draw)
        run.resume = True
        run.start()


def changed(run: JobRun, bound: int) -> bool:
    """Change the bound of a run that goes on; False when it ended before. Its controller may be away: ask again."""
    command = [sys.executable, "-m", "areal.cli.main", "set", str(run.run_dir), f"algorithm.maxStaleness={bound}"]
    assert run.process is not None
    until = time.monotonic() + PATIENCE_S
    while run.process.poll() is None:
        if subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False).returncode == 0:
            return True
        if time.monotonic() > until:
            raise AssertionError(f"no change of the bound within {PATIENCE_S:g} s:\n{run.output[-6000:]}")
    return False


def kept(row: dict[str, Any]) -> bool:
    """Whether a run kept its promises."""
    whole = row["code"] == 0 and row["ok"] and row["steps"] >= STEPS
    return whole and not row["lost"] and not row["duplicated"] and not row["problems"] and row["oldest"] <= row["bound"]


def block(rows: list[dict[str, Any]]) -> str:
    """What the page says."""
    kinds = Counter(kind for row in rows for _, kind, _ in row["faults"])
    told = ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common())
    lost, twice = (sum(row[name] for row in rows) for name in ("lost", "duplicated"))
    old, broken = sum(row["oldest"] > row["bound"] for row in rows), sum(not kept(row) for row in rows)
    lines = [
        f"{len(rows)} runs, {rows[-1]['date'][:10]}: {sum(kinds.values())} faults ({told}), "
        f"{sum(row['trained'] for row in rows):,} groups trained. **{lost} lost, {twice} trained twice, {old} runs "
        f"with a token older than the bound; {broken} runs broke a promise.**",
        "",
        "| ahead, bound | runs | faults | oldest token of any | mean seconds a run |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for ahead, bound in LEADS:
        mine = [row for row in rows if LEADS[row["seed"] % len(LEADS)] == (ahead, bound)]
        if mine:
            seconds = sum(row["seconds"] for row in mine) / len(mine)
            count = sum(len(row["faults"]) for row in mine)
            lines.append(
                f"| {ahead}, {bound} | {len(mine)} | {count} | {max(row['oldest'] for row in mine)} | {seconds:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--runs", type=int, default=34)
    made.add_argument("--seed", type=int, default=0, help="of the first run")
    made.add_argument("--minutes", type=float, default=1e6, help="begin no run after that")
    made.add_argument("--table", action="store_true", help="write the page's block")
    given = made.parse_args()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    rows = read(OUT)
    if given.table:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(head + BEGIN + block(rows) + END + rest.partition(END)[2])
        return
    asked = range(given.seed, given.seed + given.runs)
    until = time.monotonic() + 60 * given.minutes
    broken = sum(not kept(row) for row in rows if row["seed"] in asked)
    for seed in asked:
        if any(row["seed"] == seed for row in rows) or time.monotonic() > until:
            continue
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            row = play(drawn(seed), Path(folder))
        with OUT.open("a") as file:
            file.write(json.dumps(row) + "\n")
        broken += not kept(row)
        verdict = "kept" if kept(row) else f"BROKEN: {row}"
        print(
            f"  {seed}: {row['seconds']:.0f} s, {len(row['faults'])} faults, {row['trained']} groups: {verdict}",
            flush=True,
        )
    if broken:
        sys.exit(f"{broken} runs broke a promise")


if __name__ == "__main__":
    main()
