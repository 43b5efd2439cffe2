"""`report.png`: the reward curve as a picture, where matplotlib is installed. Run as a process of its own.

matplotlib costs a second of import and 100 MB, so the supervisor never loads it: `draw` starts
`python -m areal.stage.picture RUN_DIR`, and a run without matplotlib simply has no picture.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from areal.record.run_rows import Records
from areal.stage.curves import COLOURS, curve, smooth

_LIMIT_S = 60.0  # the first import builds a font cache


def draw(run_dir: Path) -> str:
    """Write `report.png` into `run_dir`; answers why there is none, or nothing."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed"
    command = [sys.executable, "-m", "areal.stage.picture", str(run_dir)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"drawing took longer than {_LIMIT_S:g} s"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[-1]


def main() -> None:
    """Draw the run named on the command line."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    run_dir = Path(sys.argv[1])
    records = Records(run_dir / "metrics.jsonl", run_dir / "evaluations.jsonl").refresh()
    what, held_out_what, made = curve(records)
    figure, axes = pyplot.subplots(figsize=(9, 4.5), dpi=120)
    values = [value for _, value in made]
    versions = [version for version, _ in made]
    axes.plot(versions, values, color=COLOURS[0], alpha=0.3, label=f"{what} of a batch")
    axes.plot(versions, smooth(values, max(1, len(made) // 40)), color=COLOURS[1], label=f"{what}, smoothed")
    held_out = records.held_out
    axes.plot(
        [one.version for one in held_out],
        [one.mean for one in held_out],
        "o-",
        color=COLOURS[2],
        label=held_out_what,
    )
    axes.set_xlabel("policy version")
    axes.set_ylim(0, 1.02 if max([*values, *(one.mean for one in held_out), 0.0]) <= 1.0 else None)
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right")
    axes.set_title(run_dir.name)
    figure.tight_layout()
    temporary = run_dir / ".report.tmp.png"
    figure.savefig(temporary)
    temporary.replace(run_dir / "report.png")


if __name__ == "__main__":
    main()
