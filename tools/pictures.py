"""`python -m tools.pictures [DIR]`, from the repository's root: takes the pictures of docs/img from a run made for it.

The run and the study are made up, the same each time: what they show is the page, not what training brings. Without
Chromium the pictures stay as they are, and it says so.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, "tests")

STEPS = 120
FLAGS = ("--no-sandbox", "--disable-gpu", "--hide-scrollbars")
SHOTS = (
    ("view-run", "/r/digits", "light", 1280, 900),
    ("view-run-dark", "/r/digits", "dark", 1280, 900),
    ("view-curves", "/r/digits?figure=reward&smooth=0.8", "light", 1280, 560),
    ("view-compare", "/compare?study=digits-study&chart=evaluation/mean&chart=reward&smooth=0.6", "light", 1280, 900),
    ("view-evals", "/r/digits/evals", "light", 1280, 700),
    ("view-sample", "/r/digits/samples/10.1", "light", 1280, 760),
)
"""Name of the picture, page, colours, width and height."""


def figures(step: int, rate: float, draw: random.Random) -> dict[str, Any]:
    """A row of metrics.jsonl whose reward rises at `rate`."""
    reward = 0.85 - 0.75 * math.exp(-step * rate) + draw.gauss(0, 0.04)
    return {
        "step": step, "reward_mean": reward, "staleness_mean": 0.9 + draw.gauss(0, 0.1), "staleness_max": 2,
        "tokens_per_s": 900 + draw.gauss(0, 60), "entropy": 1.6 - reward, "grad_norm": abs(draw.gauss(0.6, 0.2)),
        "loss": draw.gauss(0, 0.02), "zero_variance_groups": 1, "groups": 3, "tokens": 640, "sequences": 24,
        "wall_s": 2.0, "seconds": {"wait": 0.5, "take": 0.1, "train": 1.2, "publish": 0.2}, "at": 102.0 + 2 * step,
        "logprob_mismatch": abs(draw.gauss(0.004, 0.001)), "behaviour_gap": abs(draw.gauss(0.02, 0.004)),
        "figures": {"reward/correct": reward, "reward/format": 1 - math.exp(-step / 9) * 0.6 + draw.gauss(0, 0.01)},
    }  # fmt: skip


def write_run(root: Path, rate: float, seed: int, eta: int) -> None:
    """The files of a run that has ended."""
    draw = random.Random(seed * 100 + eta)
    rows = [figures(step, rate, draw) for step in range(STEPS)]
    held_out = [
        {"name": f"{step}.f1", "version": step, "mean": max(0.0, min(1.0, rows[step - 1]["reward_mean"])), "rows": 64}
        for step in range(10, STEPS + 1, 10)
    ]
    spec = {"seed": seed, "algorithm": {"maxSteps": STEPS, "maxStaleness": eta, "batchSize": 3, "groupSize": 2}}
    (root / "resolved.json").write_text(json.dumps({"job": {"spec": spec}}))
    (root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    (root / "summary.json").write_text(json.dumps({"status": "Complete", "steps": STEPS}))


def write_runs(place: Path) -> None:
    """A recorded run, and a study of two variants with three seeds each."""
    from support.recorded_run import RecordedRun, made_sample, sample_frame

    recorded = RecordedRun(place / "digits")
    shown = made_sample(10, 1, version=3, letters="6*7 is six times seven, and that makes 42")
    recorded.samples[10, 1] = shown
    recorded.append("trajectories", "worker-0-1-000000", sample_frame(shown))
    for step in range(STEPS):
        recorded.train(step)
    write_run(recorded.root, 0.04, 0, 2)
    for eta, rate in ((1, 0.03), (8, 0.05)):
        for seed in range(3):
            root = place / "digits-study" / f"maxStaleness-{eta}_seed-{seed}"
            root.mkdir(parents=True)
            write_run(root, rate, seed, eta)


def take(address: str, target: Path, chromium: str) -> None:
    """Every picture, of the page at `address`."""
    from playwright.sync_api import sync_playwright

    origin = address.partition("/?")[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for name, path, colours, width, height in SHOTS:
            tab = browser.new_page(color_scheme=colours, viewport={"width": width, "height": height})  # type: ignore[arg-type]
            tab.goto(address)
            tab.goto(origin + path, wait_until="networkidle")
            for button in tab.get_by_role("button", name="go to the worst token").all():
                button.click()
            tab.screenshot(path=target / f"{name}.png")
            tab.close()
        browser.close()


def main(target: Path) -> None:
    """Take them, where there is a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed: the pictures of docs/img stay as they are")
        return
    with tempfile.TemporaryDirectory(prefix="areal-pictures-") as place:
        write_runs(Path(place))
        command = [sys.executable, "-m", "areal.cli.main", "view", place]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:
            assert page.stdout is not None
            try:
                take(page.stdout.readline().strip(), target, chromium)
            finally:
                page.terminate()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img"))
