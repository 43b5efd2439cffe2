"""Line charts as SVG files, and what the curve of a run is. Values in, text out."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from areal.record.run_rows import Records

_WIDTH, _HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 30
_KEYS_A_ROW = 4  # of a legend inside a picture
COLOURS = (
    "#2f6fde", "#d9822b", "#2a9d6f", "#a24bbd", "#c0392b", "#6b7a8f", "#8a6d3b", "#17a2b8", "#e377c2",
    "#7f9c1c", "#1f3b73", "#b35900",
)  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One line of a chart: points (x, y), with dots where they are few and far between."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    faint: bool = False


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred moving average; shorter at the ends."""
    half = window // 2
    return [sum(part) / len(part) for at in range(len(values)) if (part := values[max(0, at - half) : at + half + 1])]


def curve(records: Records) -> tuple[str, str, list[tuple[int, float]]]:
    """What a run's curve shows, of batches and of held-out rows, and its points (version, value)."""
    losses = [(step.step + 1, step.fixed_loss) for step in records.steps if step.fixed_loss is not None]
    if losses:
        accuracy = any(not one.is_loss for one in records.held_out)  # of a reward model
        return "loss", "held-out pair accuracy" if accuracy else "held-out loss", losses
    rewards = [(step.step + 1, step.reward) for step in records.steps if step.reward is not None]
    return "reward", "held-out accuracy", rewards


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
