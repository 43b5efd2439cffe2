"""Comparison of runs: what came of each, the table and picture of a sweep.

Owns reading run directories into values for `areal compare` and `areal run --sweep`. A run that goes on is compared
with what it has so far.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from areal.plan.layout import RunLayout
from areal.record.run_rows import HeldOut, Records, best_of
from areal.stage import summary
from areal.stage.curves import Series, line_picture
from areal.stage.wording import duration

_RECENT = 10  # steps that the last reward is a mean of

HEAD = ("variant", "status", "held-out first", "best", "last", "steps", "time")
"""Columns of a sweep's table."""


@dataclass(frozen=True)
class ComparedRun:
    """What is known of one run."""

    name: str
    status: str  # Complete | Failed | Stopped | Running or killed | waiting
    steps: int = 0
    seconds: float = 0.0  # of the wall; 0 before its first end
    held_out: tuple[HeldOut, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)  # by name, for people

    @property
    def row(self) -> tuple[str, ...]:
        """Its cells under `HEAD`."""
        held = self.held_out
        figures = (held[0].mean, best_of(held).mean, held[-1].mean) if held else ()
        cells = [f"{value:.3f}" for value in figures] or ["—"] * 3
        return (self.name, self.status, *cells, str(self.steps), duration(self.seconds) if self.seconds else "—")

    def to_json(self) -> dict[str, Any]:
        """Everything but the figures, for scripts."""
        curve = [{"version": one.version, "mean": one.mean} for one in self.held_out]
        return {
            "name": self.name,
            "status": self.status,
            "steps": self.steps,
            "wallSeconds": self.seconds,
            "heldOut": curve,
        }


def read_run(root: Path) -> ComparedRun:
    """A run as its directory tells it; one that isn't there waits. Raises DataError for a damaged summary."""
    layout = RunLayout(root)  # a copied or moved run knows its old place
    ended = summary.read(layout.summary) or {}
    if not ended and not layout.resolved.exists():
        return ComparedRun(root.name, "waiting")
    records = Records(layout.metrics, layout.evaluations).refresh()
    steps, held_out = records.steps, tuple(records.held_out)
    rewards = [step.reward for step in steps[-_RECENT:] if step.reward is not None]
    seconds = [step.seconds for step in steps]
    status = ended.get("status", "Running or killed")
    figures = {
        "status": status,
        "steps": records.trained,
        "held out, best": best_of(held_out).mean if held_out else None,
        "held out, last": held_out[-1].mean if held_out else None,
        f"reward, last {_RECENT} steps": fmean(rewards) if rewards else None,
        "seconds a step": fmean(seconds) if seconds else None,
        "share of waiting": sum(step.wait_seconds for step in steps) / sum(seconds) if sum(seconds) else None,
        "staleness, mean": fmean(step.staleness_mean for step in steps) if steps else None,
        "groups that taught nothing": fmean(step.same_share for step in steps) if steps else None,
        "restarts": sum((ended.get("restarts") or {}).values()) if ended else None,
    }
    return ComparedRun(
        root.name, status, ended.get("steps", records.trained), ended.get("wallSeconds", 0.0), held_out, figures
    )


def markdown(rows: Sequence[ComparedRun]) -> str:
    """The table in Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *(one.row for one in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def curves(rows: Sequence[ComparedRun], title: str) -> str:
    """The held-out curves as an SVG file."""
    lines = [Series(one.name, [(each.version, each.mean) for each in one.held_out], dots=True) for one in rows]
    return line_picture([line for line in lines if line.points], "policy version", title)


def write_sweep(directory: Path, rows: Sequence[ComparedRun], title: str) -> None:
    """`comparison.md`, `comparison.json` and `comparison.svg` in `directory`."""
    (directory / "comparison.md").write_text(markdown(rows), encoding="utf-8")
    content = json.dumps([one.to_json() for one in rows], indent=1)
    (directory / "comparison.json").write_text(content + "\n", encoding="utf-8")
    (directory / "comparison.svg").write_text(curves(rows, title), encoding="utf-8")
