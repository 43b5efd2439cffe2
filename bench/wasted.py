"""Wasted tokens under evictions: a small job whose generation servers are taken away in turn, once a minute.

    python bench/wasted.py [--minutes 5] [--every 60] [--servers 2] [--answer 64]

Evictions take turns: one with a notice (SIGTERM, as a node that is drained sends it), one without (SIGKILL to the agent
and its engine). Real processes; each comes back in place. Prints where the tokens went and the wasted share with its
limit beside it, and writes `bench/results/wasted.json`. What a killed server had sampled and not streamed is in no
count: `unseen` is the most that it can be, and the limit holds with it.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "bench")]

import psutil  # noqa: E402
from areal.generation.agent import AgentSettings  # noqa: E402
from areal.observe.live import read_live  # noqa: E402
from areal.record.episode_ends import COUNTED, GENERATED, IN_FLIGHT, WASTED, TokenFate, read_counts  # noqa: E402
from support.job_run import JobRun  # noqa: E402

from bench.report import write  # noqa: E402

LIMIT = 0.01
WARM = 5  # steps before the first eviction
BEGIN_S = 300.0
BUSY_GROUPS = 8
RECIPE = """def reward(prompt, completions, prompt_ids, completion_ids, **row):
    return sum(int(token) % 2 for token in completion_ids) / max(1, len(completion_ids))
"""


def overrides(folder: Path, args: argparse.Namespace) -> list[str]:
    """The quickstart's job with longer answers, and a reward that differs between them."""
    (folder / "recipe.py").write_text(RECIPE)
    subprocess.run([sys.executable, "-m", "areal_trainer.init_model", "--out", str(folder / "model")], check=True)
    subprocess.run([sys.executable, "examples/digits_data.py", str(folder / "data")], check=True, cwd=ROOT)
    return [
        f"model.path={folder / 'model'}", f"recipe.file={folder / 'recipe.py'}",
        f"dataset.train.jsonl={folder / 'data' / 'train.jsonl'}",
        f"dataset.evaluation.jsonl={folder / 'data' / 'heldout.jsonl'}",
        "algorithm.batchSize=16", "algorithm.maxSteps=100000", "rollout.maxConcurrentRollouts=32",
        f"rollout.sampling.maxNewTokens={args.answer}", f"rollout.sampling.minNewTokens={args.answer // 2}",
        "rollout.sampling.otherDistribution=ignore", f"rollout.maxSampleTokens={args.answer + 16}",
        "evaluation.intervalSteps=100000", f"generation.replicas={args.servers}",
    ]  # fmt: skip


def evict(run: JobRun, *, notice: bool) -> None:
    """Take the server away that is there for longest, as a node that goes does; its launcher starts another one."""
    agent = min(run.processes("areal.processes.role", "generation"), key=psutil.Process.create_time)
    victims = [agent] if notice else [agent, *agent.children(recursive=True)]
    for victim in victims:
        try:
            victim.send_signal(signal.SIGTERM if notice else signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def busy(run: JobRun) -> bool:
    """Whether groups are generated, so that an eviction interrupts answers: a slow trainer lets servers idle."""
    live = read_live(run.run_dir / "live.json")
    return live is not None and live.flow is not None and live.flow.leased >= BUSY_GROUPS


def cut(run: JobRun) -> int:
    """Requests whose stream ended without an end of theirs, as the workers' logs tell."""
    logs = (run.run_dir / "logs").glob("worker*")
    return sum(int(n) for log in logs for n in re.findall(r"ended with (\d+) requests", log.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--every", type=float, default=60, help="seconds between two evictions")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--answer", type=int, default=64, help="most tokens of an answer")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wasted-") as made:
        folder = Path(made)
        run = JobRun(ROOT / "examples" / "quickstart.yaml", folder / "run", overrides(folder, args)).start()
        try:
            run.wait_for("the first steps", lambda: run.step() >= WARM, BEGIN_S)
            end, evictions = time.monotonic() + 60 * args.minutes, 0
            while time.monotonic() + args.every < end:
                time.sleep(args.every)
                run.wait_for("work in the servers", lambda: busy(run), BEGIN_S)
                evict(run, notice=evictions % 2 == 0)
                evictions += 1
                print(f"  eviction {evictions} at step {run.step()}", flush=True)
            time.sleep(max(0.0, end - time.monotonic()))
            assert run.process is not None
            fates, unseen = read_counts(run.run_dir / "journal"), cut(run) * AgentSettings.stream_interval
            run.process.terminate()  # what is in work then is lost with its workers: no eviction's doing
            run.finish(120)
            audit = run.audit()
        finally:
            run.stop()
        generated = fates[GENERATED]
        wasted = sum(fates[fate] for fate in WASTED)
        share, most = wasted / generated, (wasted + unseen) / (generated + unseen)
        print(f"\nwasted tokens, {evictions} evictions in {args.minutes:g} minutes  (load {os.getloadavg()[0]:.1f})")
        for name in (*TokenFate, IN_FLIGHT):
            print(f"  {name:<12} {fates[name]:>10,}  {fates[name] / generated:>8.3%}")
        print(f"  {'generated':<12} {generated:>10,}")
        print(f"  wasted share {share:.3%}, with {unseen:,} unseen at most {most:.3%}; limit {LIMIT:.0%}")
        result = {
            "date": datetime.now(UTC).isoformat()[:19], "minutes": args.minutes, "evictions": evictions,
            "servers": args.servers, "answer": args.answer, "steps": run.step(),
            "fates": {name: fates[name] for name in COUNTED}, "unseen": unseen,
            "share": round(share, 5), "share_at_most": round(most, 5), "limit": LIMIT, "lost_groups": audit["lost"],
            "load": round(os.getloadavg()[0], 2),
        }  # fmt: skip
        write("wasted", result)
        sys.exit(most > LIMIT)


if __name__ == "__main__":
    main()
