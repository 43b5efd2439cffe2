"""Comparison of runs: what came of each, the table of a sweep and its held-out curves as SVG.

Owns reading run directories into values for `areal compare` and `areal run --sweep`. A run that goes on is compared
with what it has so far.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from areal.local.view import duration
from areal.plan.layout import RunLayout
from areal.record import summary
from areal.record.run_rows import HeldOut, Records, best_of

_WIDTH, _HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 30
_KEYS_A_ROW = 4  # of a legend inside a picture
COLOURS = (
    "#2f6fde", "#d9822b", "#2a9d6f", "#a24bbd", "#c0392b", "#6b7a8f", "#8a6d3b", "#17a2b8", "#e377c2",
    "#7f9c1c", "#1f3b73", "#b35900",
)  # fmt: skip
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


@dataclass(frozen=True)
class Series:
    """One line of a chart: points (x, y), with dots where they are few and far between."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    faint: bool = False


def line_picture(lines: Sequence[Series], x_name: str, title: str) -> str:
    """The same as an SVG file of its own, with its legend inside."""
    legend, x = [], _LEFT
    for at, series in enumerate(lines):
        row, column = divmod(at, _KEYS_A_ROW)
        x, y = _LEFT + column * (_WIDTH - _LEFT) // _KEYS_A_ROW, 40 + 18 * row
        legend.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[at % len(COLOURS)]}"/>')
        legend.append(f'<text x="{x + 15}" y="{y}">{html.escape(series.name)}</text>')
    top = 50 + 18 * -(-len(lines) // _KEYS_A_ROW)
    drawn = any(series.points for series in lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + _HEIGHT}" role="img">'
        f"<style>text{{font:12px system-ui,sans-serif;fill:#57606a}}.grid{{stroke:#d0d7de}}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/><text x="{_LEFT}" y="20">{html.escape(title)}</text>'
        f'{"".join(legend)}<g transform="translate(0 {top})">{drawn_lines(lines, x_name) if drawn else ""}</g></svg>\n'
    )


def drawn_lines(lines: Sequence[Series], x_name: str) -> str:
    """The elements of a chart of at least one point, in its coordinates."""
    points = [point for series in lines for point in series.points]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low = min(y for _, y in points)
    y_high = max(y for _, y in points)
    y_high = nice_ticks(y_low, y_high)[-1] if y_high > y_low else y_low + 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        up = (y - y_low) / (y_high - y_low)
        return (
            round(_LEFT + across * (_WIDTH - _LEFT - _RIGHT), 1),
            round(_HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM), 1),
        )

    parts = [_frame(x_low, x_high, y_low, y_high, x_name)]
    for at, series in enumerate(lines):
        colour = COLOURS[at % len(COLOURS)]
        placed = [place(x, y) for x, y in series.points]
        path = " ".join(f"{x},{y}" for x, y in placed)
        opacity = ' opacity="0.35"' if series.faint else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{opacity}/>')
        if series.dots or len(placed) == 1:
            for (x, y), (version, value) in zip(placed, series.points, strict=True):
                title = f"<title>v{version:g}: {value:.4f}</title>"
                parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}">{title}</circle>')
    return "".join(parts)


def nice_ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round numbers from `low` to the first one at or above `high`: 0, 0.5, 1 or 0, 20, 40."""
    span = high - low if high > low else 1.0
    rough = span / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.floor(low / step)
    count = math.ceil((low + span) / step - 1e-9) - first
    return [round((first + number) * step, 12) for number in range(count + 1)]


def _frame(x_low: float, x_high: float, y_low: float, y_high: float, x_name: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for value in nice_ticks(y_low, y_high):
        if not y_low <= value <= y_high * (1 + 1e-9):
            continue
        y = bottom - (value - y_low) / (y_high - y_low) * (bottom - _TOP)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts.append(f'<text x="{_LEFT}" y="{bottom + 18}">{x_low:g}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{bottom + 18}" text-anchor="end">{x_high:g}</text>')
    parts.append(f'<text x="{_WIDTH / 2:g}" y="{bottom + 18}" text-anchor="middle">{html.escape(x_name)}</text>')
    return "".join(parts)
