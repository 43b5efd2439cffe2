"""The page over a long run with a full recording, generated: processor time of each kind of page, its memory, what
indexing costs, and 32,000 tokens in a browser.

python bench/view.py [--steps 20000] [--groups 8] [--size 8] [--share 1] [--keep DIR] [--no-browser]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

import report  # noqa: E402
from areal.record.segment import FrameKind, Header, pack  # noqa: E402
from areal.record.writer import in_share  # noqa: E402
from areal.v1 import record_pb2 as record  # noqa: E402
from support.recorded_run import made_sample, sample_frame, with_text  # noqa: E402

SEGMENT = 64 << 20
LONG = 32_000
LONG_GROUP = 10_000_000
PAGE_MS = 200.0  # median of a request's processor time, for each kind of page
GOALS = {"rss_mib": 256.0, "first_page_cpu_s": 2.0, "tokens_cpu_s": 1.0}
WORDS = ("sum", "price", "robe", "bolt", "clip", "then", "half", "each", "twice", "answer", "left", "week", "train")


class Segments:
    """Appends frames to files of at most 64 MiB."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._name, self._number, self._size = directory, name, 0, 0
        self._file = (directory / f"{name}-000000.rec").open("wb")

    def write(self, frame: bytes) -> None:
        if self._size + len(frame) > SEGMENT:
            self._file.close()
            self._number, self._size = self._number + 1, 0
            self._file = (self._directory / f"{self._name}-{self._number:06d}.rec").open("wb")
        self._file.write(frame)
        self._size += len(frame)

    def close(self) -> None:
        self._file.close()


def shape(seed: int) -> record.SampleRecord:
    """A sample of about 700 letters; every 64th has a phrase of its own."""
    chance = random.Random(seed)
    question, answer = (" ".join(chance.choices(WORDS, k=count)) for count in (50, 80))
    made = with_text(
        made_sample(0, 0, seed=seed), question, f"{answer} {'rare phrase' if seed == 7 else ''} #### {seed}"
    )
    made.expected = f"#### {seed}"
    made.sample.verdict.figures.update({"correct": seed % 2, "format": seed % 5 / 4, "brevity": -seed / 64})
    return made


def generate(root: Path, asked: argparse.Namespace) -> None:
    """A run as its roles record it; samples of a share of its groups."""
    steps, share = asked.steps, asked.share
    worker, trainer = Segments(root / "trajectories", "worker-0-1"), Segments(root / "recording", "trainer-1")
    shapes = [shape(seed) for seed in range(64)]
    chance = np.random.default_rng(0)
    with (root / "metrics.jsonl").open("w") as metrics:
        for step in range(steps):
            for group in range(step * asked.groups, (step + 1) * asked.groups):
                if not in_share(group, share):
                    continue
                for index in range(asked.size):
                    made = shapes[(group + index) % 64]
                    made.sample.key.group, made.sample.key.index, made.newest_version = group, index, step
                    worker.write(sample_frame(made))
            trainer.write(step_frame(step, chance, asked))
            metrics.write(json.dumps(metrics_row(step)) + "\n")
    long = made_sample(LONG_GROUP, 0, letters="abcdefgh" * (LONG // 8))
    worker.write(sample_frame(long))
    worker.close()
    trainer.close()
    spec = {"algorithm": {"maxSteps": steps, "maxStaleness": 2, "batchSize": asked.groups, "groupSize": asked.size}}
    (root / "resolved.json").write_text(json.dumps({"job": {"spec": spec}}))
    (root / "summary.json").write_text(json.dumps({"status": "Complete", "steps": steps}))


def step_frame(step: int, chance: np.random.Generator, asked: argparse.Namespace) -> bytes:
    """One step's columns."""
    count = asked.groups * asked.size
    groups = np.repeat(np.arange(step * asked.groups, (step + 1) * asked.groups), asked.size)
    rewards = chance.integers(0, 2, count).astype("<f8")
    told = record.StepRecord(
        step=step, fence=1, at=1000.0 + step, seconds={"train": 1.0, "wait": 0.5},
        groups=groups.astype("<u8").tobytes(),
        indices=np.tile(np.arange(asked.size), asked.groups).astype("<u4").tobytes(),
        rewards=rewards.tobytes(), advantages=(rewards - rewards.mean()).tobytes(),
        tokens=chance.integers(100, 2000, count).astype("<u4").tobytes(),
        trained=chance.integers(50, 1000, count).astype("<u4").tobytes(),
        ages=chance.integers(0, 3, count).astype("<i4").tobytes(),
        mismatch=chance.random(count).astype("<f4").tobytes(), worst=chance.random(count).astype("<f4").tobytes(),
        beyond=np.zeros(count, "<f4").tobytes(), xxh3=chance.integers(0, 2**63, count).astype("<u8").tobytes(),
    )  # fmt: skip
    head = Header(FrameKind.STEP, step=step, reward=float(rewards.mean()), tokens=1, version=1)
    return pack(head, told.SerializeToString())


def metrics_row(step: int) -> dict[str, object]:
    """About as many fields as the trainer writes."""
    row: dict[str, object] = {f"figure_{n}": step / (n + 1) for n in range(20)}
    return row | {
        "step": step, "reward_mean": 0.5, "staleness_mean": 0.5, "staleness_max": 1, "tokens_per_s": 900.0,
        "entropy": 1.0, "grad_norm": 2.0, "loss": 0.1, "zero_variance_groups": 1, "groups": 8, "tokens": 60,
        "wall_s": 2.0, "at": 1000.0 + 2 * step,
        "seconds": {"wait": 0.5, "train": 1.0}, "logprob_mismatch": 0.01, "behaviour_gap": 0.01,
        "figures": {"correct": 1 / (1 + step), "format": 1 - 1 / (1 + step), "brevity": -0.5},
    }  # fmt: skip


LISTS = {
    "newest": "",
    "by reward": "order=reward",
    "by a part": "order=-figures.format&low.format=0.5&high.correct=0.5",
    "by version": "from_version={low}&to_version={high}",
    "rare filter": "low.correct=1&high.format=0&low.brevity=-0.01",
    "no such": "low=9",
    "a word": "text=robe",
    "a phrase": "text=%22rare+phrase%22",
    "no hit": "text=%22answer+answer+answer+clip+clip+train%22",
}


def paths(asked: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Kind and address of the pages that are opened, most of them at random."""
    chance = random.Random(1)
    drawn = (chance.randrange(asked.steps * asked.groups) for _ in range(4000))
    kept = [group for group in drawn if in_share(group, asked.share)]
    for n in range(asked.rounds):
        group, low = kept[n % len(kept)], chance.randrange(asked.steps)
        yield "step", f"/steps/{chance.randrange(asked.steps)}"
        yield "group", f"/groups/{group}"
        yield "sample", f"/samples/{group}.{n % asked.size}"
        yield "tokens", f"/samples/{group}.{n % asked.size}/tokens/0"
        for name, place in (("run", ""), ("evaluations", "/evals"), ("configuration", "/config"), ("fleet", "/fleet")):
            yield name, place
        yield "curve", ("/curves?name=reward", "/curves?name=speed", "/curves?name=figures/format")[n % 3]
        for name, query in LISTS.items():
            yield f"list {name}", f"/search?{query.format(low=low, high=low + 9)}"


def serve(root: Path, cache: Path) -> tuple[subprocess.Popen[str], str]:
    """`areal view`, and the address that it prints."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "areal.cli.main", "view", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def in_browser(address: str, path: str) -> tuple[float, float]:
    """Seconds from opening the long sample until one of its tokens says its figures, and of them those that the page
    computed: the rest is the server's, and what the machine's other load takes."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.goto(address)
        found, tracing = list[tuple[float, float]](), page.context.new_cdp_session(page)
        tracing.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time of the page's main thread

        def busy() -> float:
            told = tracing.send("Performance.getMetrics")["metrics"]
            return float(next(one["value"] for one in told if one["name"] == "TaskDuration"))

        for _ in range(3):
            began, used = time.perf_counter(), busy()
            page.goto(path)
            page.get_by_role("button", name="go to the worst token").click()
            page.locator(".figures b").first.wait_for()
            found.append((time.perf_counter() - began, busy() - used))
        browser.close()
    return min(found)


def main() -> None:
    """Generate, serve, measure, print, write `bench/results/view.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--groups", type=int, default=8, help="of a step")
    parser.add_argument("--size", type=int, default=8, help="samples of a group")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=15, help="requests of each kind")
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--keep", type=Path, help="where the generated run is, or stays")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        root = options.keep or Path(work) / "long"
        if not (root / "summary.json").exists():
            root.mkdir(parents=True, exist_ok=True)
            generate(root, options)
        process, address = serve(root, Path(work))
        try:
            result, pages = measure(process, address, options)
        finally:
            process.terminate()
            process.wait(20)
    samples, load = int(result["samples"]), os.getloadavg()[0]
    print(f"\nview, {options.steps:,} steps, {samples:,} samples with text  (load {load:.1f})")
    print(f"  processor time of a request, ms      median   most   (limit of the median {PAGE_MS:,.0f})")
    for name, (median, most) in pages.items():
        print(f"  {name:<34} {median:>8,.1f} {most:>6,.0f}{'' if median <= PAGE_MS else '  MISSED'}")
    for name, value in result.items():
        goal = f"  limit {GOALS[name]:,.0f}{'' if value <= GOALS[name] else '  MISSED'}" if name in GOALS else ""
        print(f"  {name:<34} {value:>8,.1f}{goal}")
    told = {name: {"median_ms": median, "most_ms": most, "limit_ms": PAGE_MS} for name, (median, most) in pages.items()}
    asked = {name: getattr(options, name) for name in ("steps", "groups", "size", "share")}
    report.write("view", {"load": load, **asked, **result, "pages": told})


def measure(
    process: subprocess.Popen[str], address: str, options: argparse.Namespace
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Figures of the server, and median and most of each kind of page."""
    base, server, busy = address.partition("?")[0], psutil.Process(process.pid), dict[str, list[float]]()

    def spent() -> float:
        return sum(server.cpu_times()[:2])

    with httpx.Client(base_url=base, timeout=600, follow_redirects=True) as client:
        client.get(address).raise_for_status()
        first, progress = spent(), client.get(f"{base}/search?format=json").json()["progress"]
        while progress["taken"] < progress["size"] or progress["texts"] < progress["samples"]:
            time.sleep(1.0)
            progress = client.get(f"{base}/search?format=json").json()["progress"]
        indexed, samples = spent() - first, progress["samples"]
        for kind, path in paths(options):
            before = spent()
            answer = client.get(base + path)
            assert answer.status_code == 200, (path, answer.status_code)
            busy.setdefault(kind, []).append(1000 * (spent() - before))
    result = {
        "samples": samples,
        "first_page_cpu_s": first,
        "index_cpu_s": indexed,
        "index_cpu_us_a_sample": 1e6 * indexed / samples,
        "rss_mib": server.memory_info().rss / 2**20,
    }
    if not options.no_browser:
        result["tokens_s"], result["tokens_cpu_s"] = in_browser(address, f"{base}/samples/{LONG_GROUP}.0")
    return result, {kind: (float(np.median(one)), max(one)) for kind, one in busy.items()}


if __name__ == "__main__":
    main()
