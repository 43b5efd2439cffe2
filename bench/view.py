"""The page over a long run, generated: times of its pages, its memory, and 32,000 tokens in a browser.

python bench/view.py [--steps 10000] [--share 0.0625] [--keep DIR]
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
from support.recorded_run import made_sample, sample_frame  # noqa: E402

GROUPS, SIZE = 64, 8
SEGMENT = 64 << 20
LONG = 32_000
LONG_GROUP = 10_000_000
GOALS = {"page_p95_ms": 200.0, "step_p95_ms": 300.0, "rss_mib": 256.0, "first_page_s": 2.0, "tokens_s": 1.0}


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


def generate(root: Path, steps: int, share: float) -> None:
    """A run as its roles record it; samples of a share of its groups."""
    worker, trainer = Segments(root / "trajectories", "worker-0-1"), Segments(root / "recording", "trainer-1")
    shapes = [made_sample(0, 0, seed=seed) for seed in range(64)]
    chance = np.random.default_rng(0)
    with (root / "metrics.jsonl").open("w") as metrics:
        for step in range(steps):
            for group in range(step * GROUPS, (step + 1) * GROUPS):
                if not in_share(group, share):
                    continue
                for index in range(SIZE):
                    made = shapes[(group + index) % 64]
                    made.sample.key.group, made.sample.key.index, made.newest_version = group, index, step
                    worker.write(sample_frame(made))
            trainer.write(step_frame(step, chance))
            metrics.write(json.dumps(metrics_row(step)) + "\n")
    long = made_sample(LONG_GROUP, 0, letters="abcdefgh" * (LONG // 8))
    worker.write(sample_frame(long))
    worker.close()
    trainer.close()
    spec = {"algorithm": {"maxSteps": steps, "maxStaleness": 2, "batchSize": GROUPS, "groupSize": SIZE}}
    (root / "resolved.json").write_text(json.dumps({"job": {"spec": spec}}))
    (root / "summary.json").write_text(json.dumps({"status": "Complete", "steps": steps}))


def step_frame(step: int, chance: np.random.Generator) -> bytes:
    """One step's columns."""
    count = GROUPS * SIZE
    groups = np.repeat(np.arange(step * GROUPS, (step + 1) * GROUPS), SIZE)
    rewards = chance.integers(0, 2, count).astype("<f8")
    told = record.StepRecord(
        step=step, fence=1, at=1000.0 + step, seconds={"train": 1.0, "wait": 0.5},
        groups=groups.astype("<u8").tobytes(),
        indices=np.tile(np.arange(SIZE), GROUPS).astype("<u4").tobytes(),
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
        "entropy": 1.0, "grad_norm": 2.0, "loss": 0.1, "zero_variance_groups": 1, "groups": GROUPS, "tokens": 60,
        "wall_s": 2.0, "at": 1000.0 + 2 * step,
        "seconds": {"wait": 0.5, "train": 1.0}, "logprob_mismatch": 0.01, "behaviour_gap": 0.01,
    }  # fmt: skip


def paths(steps: int, share: float) -> Iterator[tuple[str, str]]:
    """Kind and address of the pages that are opened, most of them at random."""
    chance = random.Random(1)
    kept = [g for g in (chance.randrange(steps * GROUPS) for _ in range(4000)) if in_share(g, share)]
    for n in range(30):
        yield "step", f"/steps/{chance.randrange(steps)}"
        group = kept[n % len(kept)]
        yield "page", f"/groups/{group}"
        yield "page", f"/samples/{group}.{n % SIZE}"
        yield "page", f"/samples/{group}.{n % SIZE}/tokens/0"
        yield "page", ("", "/facts", "/newest", "/evals", "/config", "/search", "/fleet")[n % 7]
        yield "page", ("/curves?name=reward", "/curves?name=speed", "/search?outcome=complete&low=0.5&high=1")[n % 3]


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
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--share", type=float, default=1 / 16)
    parser.add_argument("--keep", type=Path, help="where the generated run is, or stays")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        root = options.keep or Path(work) / "long"
        if not (root / "summary.json").exists():
            root.mkdir(parents=True, exist_ok=True)
            generate(root, options.steps, options.share)
        began = time.perf_counter()
        process, address = serve(root, Path(work))
        try:
            result = measure(process, address, options, began)
        finally:
            process.terminate()
            process.wait(20)
    print(f"\nview, {options.steps:,} steps × {GROUPS * SIZE} samples  (load {os.getloadavg()[0]:.1f})")
    for name, value in result.items():
        goal = f"  goal {GOALS[name]:,.0f}{'' if value <= GOALS[name] else '  MISSED'}" if name in GOALS else ""
        print(f"  {name:<22} {value:>10,.1f}{goal}")
    report.write("view", {"load": os.getloadavg()[0], "steps": options.steps, "share": options.share, **result})


def measure(
    process: subprocess.Popen[str], address: str, options: argparse.Namespace, began: float
) -> dict[str, float]:
    """All figures."""
    base, server, busy = address.partition("?")[0], psutil.Process(process.pid), list[float]()
    spent: dict[str, list[float]] = {"page": [], "step": []}
    slowest = dict[str, float]()
    with httpx.Client(base_url=base, timeout=120, follow_redirects=True) as client:
        client.get(address).raise_for_status()
        first, first_cpu = time.perf_counter() - began, sum(server.cpu_times()[:2])
        while client.get(f"{base}/groups/{LONG_GROUP}").status_code == 404:
            time.sleep(0.2)
        while client.get(f"{base}/steps/{options.steps - 1}").status_code == 404:
            time.sleep(0.2)
        indexed = time.perf_counter() - began
        for kind, path in paths(options.steps, options.share):
            at, cpu = time.perf_counter(), sum(server.cpu_times()[:2])
            answer = client.get(base + path)
            assert answer.status_code == 200, (path, answer.status_code)
            spent[kind].append(1000 * (time.perf_counter() - at))
            busy.append(1000 * (sum(server.cpu_times()[:2]) - cpu))
            name = path.strip("/").partition("/")[0].partition("?")[0] or "run"
            slowest[name] = max(busy[-1], slowest.get(name, 0.0))
    rss = server.memory_info().rss / 2**20
    tokens, tokens_cpu = in_browser(address, f"{base}/samples/{LONG_GROUP}.0")
    return {
        "first_page_s": first,
        "first_page_cpu_s": first_cpu,
        "indexed_s": indexed,
        "page_p50_ms": float(np.percentile(spent["page"], 50)),
        "page_p95_ms": float(np.percentile(spent["page"], 95)),
        "cpu_mean_ms": float(np.mean(busy)),
        "cpu_p95_ms": float(np.percentile(busy, 95)),
        **{f"cpu_most_{name}_ms": most for name, most in sorted(slowest.items())},
        "step_p95_ms": float(np.percentile(spent["step"], 95)),
        "rss_mib": rss,
        "tokens_s": tokens,
        "tokens_cpu_s": tokens_cpu,
    }


if __name__ == "__main__":
    main()
