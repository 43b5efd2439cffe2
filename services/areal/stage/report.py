"""`report.html`: one self-contained page about a run, readable without a network. Values in, text out.

Charts are inline SVG in the colours of the reader's theme; every figure on the page is in `summary.json`, too.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.plan import ResolvedJob
from areal.spec import explain
from areal.stage.job_fields import spec_fields
from areal.stage.records import Records, Step
from areal.stage.report_samples import ShownSample, last_samples
from areal.stage.wording import duration, rate

_WIDTH, _HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 30
_KEYS_A_ROW = 4  # of a legend inside a picture
COLOURS = (
    "#2f6fde", "#d9822b", "#2a9d6f", "#a24bbd", "#c0392b", "#6b7a8f", "#8a6d3b", "#17a2b8", "#e377c2",
    "#7f9c1c", "#1f3b73", "#b35900",
)  # fmt: skip


_PHASES = {
    "wait": "waiting for samples", "take": "taking the batch", "prox": "log-probabilities before the update",
    "train": "update", "publish": "publishing weights", "checkpoint": "checkpoint",
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One line of a chart: points (x, y), with dots where they are few and far between."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    faint: bool = False


_VERSION, _AGE = "policy version", "versions"


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


def page(
    name: str,
    summary: Mapping[str, Any],
    records: Records,
    about: Sequence[tuple[str, str]] = (),
    samples: Sequence[ShownSample] = (),
    fields: Mapping[str, Any] | None = None,
) -> str:
    """The whole page. `about` says what was run, as (subject, sentence); `fields` are the job's by dotted path."""
    steps = records.steps
    what, held_out_what, made = curve(records)
    window = max(1, len(made) // 40)
    means = smooth([value for _, value in made], window)
    learning = [
        Series(f"{what} of a batch", [(x, y) for x, y in made], faint=True),
        Series(f"{what}, smoothed", [(x, y) for (x, _), y in zip(made, means, strict=True)]),
        Series(held_out_what, [(one.version, one.mean) for one in records.held_out], dots=True),
    ]
    ages = [
        Series("mean", [(step.step + 1, step.staleness_mean) for step in steps]),
        Series("max", [(step.step + 1, float(step.staleness_max)) for step in steps], faint=True),
    ]
    losses = Series("loss of a batch", [(step.step + 1, step.loss) for step in steps if step.loss is not None])
    lengths = Series("mean", [(step.step + 1, step.length) for step in steps if step.length is not None])
    body = [
        f"<h1>{html.escape(name)}</h1>",
        _figures(summary),
        _rows(about),
        f"<h2>{what.capitalize()}</h2>",
        line_chart([series for series in learning if series.points], _VERSION, low=0.0),
        *([] if what == "loss" else ["<h2>Staleness of trained tokens</h2>"]),
        *([] if what == "loss" else [line_chart([line for line in ages if line.points], _VERSION, low=0.0, unit=_AGE)]),
        *([] if what == "loss" else ["<h2>Loss</h2>", line_chart([losses], _VERSION)]),
        "<h2>Length of a sequence, prompt included</h2>",
        line_chart([lengths], _VERSION, low=0.0, unit="tokens"),
        "<h2>Time of a step by phase</h2>",
        phase_chart(steps),
        *_answers(samples),
        "<h2>Summary</h2>",
        _table(summary),
        *(["<h2>Configuration</h2>", _rows([*fields.items()])] if fields else []),
    ]
    return _PAGE.format(title=html.escape(name), body="\n".join(body))


def write(resolved: ResolvedJob, run_dir: Path, summary: Mapping[str, Any], records: Records) -> Path:
    """Write `report.html` into `run_dir`, whole or not at all."""
    job = resolved.job
    about = [("start model", str(resolved.model_path)), ("seed", str(job.spec.seed))]
    about += explain(job, scores_itself=resolved.verifier is None)
    target = run_dir / "report.html"
    part = target.with_name(".report.html.part")
    samples = last_samples(run_dir, records.steps[-1].step) if records.steps else []
    fields = spec_fields(job)
    part.write_text(page(resolved.name, summary, records, about, samples, fields), encoding="utf-8")
    part.replace(target)
    return target


def line_chart(lines: Sequence[Series], x_name: str, *, low: float | None = None, unit: str = "") -> str:
    """Lines over a common x axis."""
    if not any(series.points for series in lines):
        return "<p class=none>nothing was measured</p>"
    legend = [(series.name, COLOURS[at % len(COLOURS)]) for at, series in enumerate(lines)]
    return _svg(drawn_lines(lines, x_name, low=low), legend, unit)


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


def drawn_lines(lines: Sequence[Series], x_name: str, *, low: float | None = None) -> str:
    """The elements of a chart of at least one point, in its coordinates."""
    points = [point for series in lines for point in series.points]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low = min(y for _, y in points) if low is None else low
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


def phase_chart(steps: Sequence[Step]) -> str:
    """Seconds of each step, stacked by phase. Long runs are averaged over neighbouring steps."""
    timed = [step for step in steps if step.phases]
    if not timed:
        return "<p class=none>nothing was measured</p>"
    names = sorted({name for step in timed for name in step.phases})
    width = max(1, -(-len(timed) // 160))  # steps a bar
    bars = []
    for at in range(0, len(timed), width):
        group = timed[at : at + width]
        bars.append({name: sum(step.phases.get(name, 0.0) for step in group) / len(group) for name in names})
    most = max(sum(bar.values()) for bar in bars) or 1.0
    across = (_WIDTH - _LEFT - _RIGHT) / len(bars)
    scale = (_HEIGHT - _TOP - _BOTTOM) / (most * 1.05)
    parts = [_frame(timed[0].step + 1, timed[-1].step + 1, 0.0, most * 1.05, "policy version")]
    for at, bar in enumerate(bars):
        top = float(_HEIGHT - _BOTTOM)
        for index, name in enumerate(names):
            height = bar[name] * scale
            top -= height
            parts.append(
                f'<rect x="{_LEFT + at * across:.1f}" y="{top:.1f}" width="{max(0.5, across * 0.9):.1f}" '
                f'height="{height:.1f}" fill="{COLOURS[index % len(COLOURS)]}"/>'
            )
    legend = [(_PHASES.get(name, name), COLOURS[index % len(COLOURS)]) for index, name in enumerate(names)]
    return _svg("".join(parts), legend, "seconds")


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


def _svg(inner: str, legend: Sequence[tuple[str, str]], unit: str) -> str:
    keys = "".join(f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>' for name, colour in legend)
    unit_text = f"<span class=unit>{html.escape(unit)}</span>" if unit else ""
    return f'<div class=legend>{keys}{unit_text}</div><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{inner}</svg>'


def _figures(summary: Mapping[str, Any]) -> str:
    out, groups = summary["heldOut"], summary["groups"]
    held_out = "—" if out["first"] is None else f"{out['first']:.3f} → {out['last']:.3f}"
    figures = [
        ("status", summary["status"]),
        ("steps", summary["steps"]),
        ("wall time", duration(summary["wallSeconds"])),
        ("held-out accuracy", held_out),
        *((f"held-out {name}", f"{value:.3f}") for name, value in out.get("sampled", {}).items()),
        *((f"held-out {name}", _of_set(of_set)) for name, of_set in out.get("sets", {}).items()),
        ("groups lost / duplicated", f"{groups['lost']} / {groups['duplicated']}"),
        ("staleness mean / max", f"{summary['staleness']['mean']} / {summary['staleness']['max']}"),
        ("generation", rate(summary["tokensPerSecond"]["generation"])),
        ("training", rate(summary["tokensPerSecond"]["training"])),
        ("groups that earned the same", _share(summary.get("sameRewardShare"))),
        ("updates", "—" if summary.get("updates") is None else summary["updates"]),
    ]
    cards = "".join(f"<div><b>{html.escape(str(value))}</b><span>{name}</span></div>" for name, value in figures)
    return f"<div class=cards>{cards}</div>"


def _answers(samples: Sequence[ShownSample]) -> list[str]:
    if not samples:
        return []
    shown = [
        f"<article><b>{one.group}.{one.index} · reward {one.reward:.3f}</b><pre>{html.escape(one.prompt)}"
        f"<mark>{html.escape(one.answer)}</mark></pre></article>"
        for one in samples
    ]
    return ["<h2>Answers of the last step, from the lowest reward to the highest</h2>", *shown]


def _of_set(figures: Mapping[str, float]) -> str:
    return " · ".join(f"{name} {value:.3f}" for name, value in figures.items() if name != "rows")


def _share(value: float | None) -> str:
    return "—" if value is None else f"{value:.0%}"


def _table(summary: Mapping[str, Any]) -> str:
    # a line of zeros a role tells nothing
    return _rows([(name, value) for name, value in _flat(summary) if value or not name.startswith("restarts.")])


def _rows(rows: Sequence[tuple[str, Any]]) -> str:
    cells = (f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table>{''.join(cells)}</table>" if rows else ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(f"{prefix}{name}", value)]
    return found


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #1b1f24; --faint: #6b7280; --grid: #e3e6ea; --card: #f5f7fa; --back: #fff; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: #e6e8eb; --faint: #9aa3ad; --grid: #30363d; --card: #1c2128; --back: #0f1317; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 900px;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.05rem; margin-top: 2rem; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: .6rem; }}
.cards div {{ background: var(--card); border-radius: 8px; padding: .6rem .8rem; }}
.cards b {{ display: block; font-size: 1.1rem; }}
.cards span, .unit, .none {{ color: var(--faint); font-size: .85rem; }}
.legend {{ display: flex; flex-wrap: wrap; gap: 1rem; font-size: .85rem; }}
.legend i {{ display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem; }}
svg {{ width: 100%; height: auto; }}
svg text {{ fill: var(--faint); font-size: 12px; }} .grid {{ stroke: var(--grid); }}
table {{ border-collapse: collapse; font-size: .85rem; }} td {{ padding: .15rem 1rem .15rem 0; }}
td:first-child {{ color: var(--faint); }} td {{ overflow-wrap: anywhere; }}
article {{ background: var(--card); border-radius: 8px; padding: .5rem .8rem; margin: .5rem 0; font-size: .85rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; margin: .3rem 0 0; }}
mark {{ background: none; color: inherit; border-bottom: 2px solid #2f6fde; }}
</style></head><body>
{body}
</body></html>
"""
