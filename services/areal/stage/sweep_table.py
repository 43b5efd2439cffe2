"""Comparison of a sweep's variants: a table, a picture of their held-out curves, and both as JSON. Text of values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.stage import summary
from areal.stage.records import HeldOut, Records, best_of
from areal.stage.report import Series, line_picture
from areal.stage.wording import duration

HEAD = ("variant", "status", "held-out first", "best", "last", "steps", "time")


@dataclass(frozen=True)
class Compared:
    """What is known of one run."""

    name: str
    status: str  # Complete | Failed | Stopped | waiting
    steps: int = 0
    seconds: float = 0.0
    held_out: tuple[HeldOut, ...] = ()

    @property
    def row(self) -> tuple[str, ...]:
        """Its cells under `HEAD`."""
        held = self.held_out
        figures = (held[0].mean, best_of(held).mean, held[-1].mean) if held else ()
        cells = [f"{value:.3f}" for value in figures] or ["—"] * 3
        return (self.name, self.status, *cells, str(self.steps), duration(self.seconds) if self.seconds else "—")

    def to_json(self) -> dict[str, Any]:
        """Everything, for scripts."""
        curve = [{"version": one.version, "mean": one.mean} for one in self.held_out]
        return {
            "name": self.name,
            "status": self.status,
            "steps": self.steps,
            "wallSeconds": self.seconds,
            "heldOut": curve,
        }


def look(name: str, run_dir: Path) -> Compared:
    """A run as its directory tells it; one that isn't there waits."""
    found = summary.read(run_dir / "summary.json")
    if found is None:
        return Compared(name, "waiting")
    records = Records(run_dir / "metrics.jsonl", run_dir / "evaluations.jsonl").refresh()
    return Compared(name, found["status"], found["steps"], found["wallSeconds"], tuple(records.held_out))


def markdown(rows: Sequence[Compared]) -> str:
    """The table in Markdown."""
    lines = [HEAD, ("---",) * len(HEAD), *(one.row for one in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def curves(rows: Sequence[Compared], title: str) -> str:
    """The held-out curves as an SVG file."""
    lines = [Series(one.name, [(each.version, each.mean) for each in one.held_out], dots=True) for one in rows]
    return line_picture([line for line in lines if line.points], "policy version", title)


def write(directory: Path, rows: Sequence[Compared], title: str) -> None:
    """`comparison.md`, `comparison.json` and `comparison.svg` in `directory`."""
    (directory / "comparison.md").write_text(markdown(rows), encoding="utf-8")
    content = json.dumps([one.to_json() for one in rows], indent=1)
    (directory / "comparison.json").write_text(content + "\n", encoding="utf-8")
    (directory / "comparison.svg").write_text(curves(rows, title), encoding="utf-8")
