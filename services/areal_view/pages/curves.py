"""Curves of runs: which figures a run has, and the columns of a chart, smoothed, cut to a range and thinned.

A chart is a preset by its name, or any figure by the name that TensorBoard has for it: `trainer/loss`, `seconds/wait`,
`figures/format`, `evaluation/mean`. Pure: records in, values out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlencode

import numpy as np
from areal.record.run_rows import evaluation_figures
from areal.values.interval import student_half, wilson
from areal.yaml_file.table import read_table
from numpy.typing import NDArray

from areal_view.pages.runs import ShownRun

Band = Literal["95", "std", "range"]
BANDS: tuple[Band, ...] = ("95", "std", "range")
Values = NDArray[np.float64]  # not a number where nothing finite is recorded


@dataclass(frozen=True)
class FigureLine:
    """A line of a preset: its label and figure, divided by another one where that is given."""

    label: str
    figure: str
    per: str = ""


PRESETS: tuple[tuple[str, str, tuple[FigureLine, ...]], ...] = tuple(
    (name, row["title"], tuple(FigureLine(label, *figures) for label, figures in row["lines"].items()))
    for name, row in read_table("areal_view.pages", "figures.yaml")["charts"].items()
)
"""Name, title with unit, and lines of the charts that a run shows first."""

OWN = "figures/"  # Begins the names of figures that the job's own code names

_OF_PAIRS = ("pairs", "margin")
MOST_CHARTS = 48
MOST_POINTS = 600
_HUGE = 10.0**300  # an integer of a file may be larger than any float


@dataclass(frozen=True)
class CurveOptions:
    """How curves are drawn, as an address says it. `first` and `last` are steps, both included."""

    smooth: float = 0.0  # weight of the past in the moving average, 0 ≤ w < 1
    log: bool = False
    first: int | None = None
    last: int | None = None
    band: Band = "95"  # over seeds

    @property
    def query(self) -> str:
        """The same as a part of an address; empty as long as nothing was chosen."""
        told = {"from": self.first, "to": self.last, "smooth": self.smooth or None, "log": int(self.log) or None}
        chosen: dict[str, object] = {name: value for name, value in told.items() if value is not None}
        return urlencode(chosen | ({"band": self.band} if self.band != BANDS[0] else {}))


@dataclass(frozen=True)
class ChartChoice:
    """Charts that are drawn, among those that could be. `figures`: name, title, whether it is chosen."""

    charts: Sequence[tuple[str, str]]
    figures: Sequence[tuple[str, str, bool]]
    options: CurveOptions = CurveOptions()
    text: str = ""  # that names must contain
    left: int = 0  # charts beyond the most that are drawn


@dataclass(frozen=True)
class Series:
    """A line: `values` [places] along the axis, `low` and `high` its band, `raw` the line before smoothing."""

    label: str
    at: NDArray[np.int64]
    values: Values
    low: Values | None = None
    high: Values | None = None
    raw: Values | None = None
    dots: bool = False


def usual_charts(*runs: ShownRun) -> list[tuple[str, str]]:
    """Name and title of the charts that runs show unless others are chosen: presets with values, then own figures."""
    known = {name for run in runs for name in run.figure_names}
    empty = not any(run.rows() for run in runs)
    usual = [
        (name, title)
        for name, title, lines in PRESETS
        if (empty and name not in _OF_PAIRS) or any({line.figure, line.per or line.figure} <= known for line in lines)
    ]
    own = sorted(name for name in known if name.startswith(OWN))[:MOST_CHARTS]
    return [*usual, *((name, name.removeprefix(OWN)) for name in own)]


def chosen_charts(
    runs: Sequence[ShownRun],
    first: Sequence[tuple[str, str]],
    wanted: Sequence[str] = (),
    text: str = "",
    options: CurveOptions = CurveOptions(),
) -> ChartChoice:
    """Charts named in `wanted`; else those whose name or title has every word of `text`; else those in `first`."""
    presets = dict([*first, *usual_charts(*runs)])
    known = {name for run in runs for name in run.figure_names}
    known.update(name for run in runs for row in run.held_out() for name in evaluation_figures(row))
    every = {**presets, **{name: name for name in sorted(known - presets.keys())}}
    words = text.lower().split()
    fitting = [(name, title) for name, title in every.items() if all(w in f"{name} {title}".lower() for w in words)]
    kept = [(name, title) for name, title in every.items() if name in wanted and (name, title) not in fitting]
    charts = [(name, every.get(name, name)) for name in dict.fromkeys(wanted)] or (fitting if words else list(first))
    listed = [(name, title, name in wanted) for name, title in [*kept, *fitting]]
    return ChartChoice(charts[:MOST_CHARTS], listed, options, text, max(0, len(charts) - MOST_CHARTS))


def curve(run: ShownRun, name: str, options: CurveOptions = CurveOptions()) -> dict[str, Any] | None:
    """One chart's columns; None for a name that is neither a preset nor a figure of the run."""
    lines = lines_of(run, name)
    return None if lines is None else columns([[line] for line in lines], options)


def lines_of(run: ShownRun, name: str) -> list[Series] | None:
    """Lines of a chart as they are recorded; None for a name that is no chart's."""
    if name.startswith("evaluation/"):
        return _held_out(run, name)
    preset = next((lines for known, _, lines in PRESETS if known == name), None)
    if preset is None and name not in run.figure_names:
        return None
    rows = run.rows()
    at = np.array([row["step"] for row in rows], np.int64)
    label = name.removeprefix(OWN)
    lines = [Series(line.label, at, _column(rows, line)) for line in preset or (FigureLine(label, name),)]
    if len(lines) > 1:
        lines = [line for line in lines if np.isfinite(line.values).any()] or lines[:1]
    if name == ("loss" if run.is_supervised else "reward"):
        lines += [replace(line, label="held-out") for line in _held_out(run, "evaluation/mean") or ()]
    return lines


def _held_out(run: ShownRun, name: str) -> list[Series] | None:
    """A figure of the evaluations by version; a mean of scores from 0 to 1 has the interval of a share."""
    told = [(int(row["version"]), row.get("metric"), evaluation_figures(row)) for row in run.held_out()]
    told = [one for one in told if name in one[2]]
    if not told:
        return None
    group, _, last = name.rpartition("/")
    bounds = [
        score_interval(figures[name], figures.get(f"{group}/rows"), metric) if last == "mean" else None
        for _, metric, figures in told
    ]
    low, high = (_floats(one[side] if one else None for one in bounds) if any(bounds) else None for side in (0, 1))
    values = _floats(figures[name] for _, _, figures in told)
    at = np.array([version for version, _, _ in told], np.int64)
    return [Series(name.removeprefix("evaluation/"), at, values, low, high, dots=True)]


def score_interval(mean: float | None, rows: float | None, metric: Any = None) -> tuple[float, float] | None:
    """Wilson's interval of the mean of scores of `rows` rows; None where they are a loss, or not from 0 to 1."""
    if mean is None or metric == "loss" or not rows or rows < 1 or not 0.0 <= mean <= 1.0:
        return None
    return wilson(mean, int(rows))


def columns(groups: Sequence[Sequence[Series]], options: CurveOptions, *, extremes: bool = True) -> dict[str, Any]:
    """Lines over one axis, ready to be drawn: each of `groups` is one, the mean of its members with a band over them.

    Beyond MOST_POINTS places a point stands for `each` steps: its value is their mean, or the moving average at their
    end, and with `extremes` its band goes from the least to the greatest of them.
    """
    cut = [[_cut(_smoothed(line, options.smooth), options) for line in lines] for lines in groups]
    grid = Grid.over([line.at for lines in cut for line in lines])
    drawn = [_merged([grid.thinned(line, extremes) for line in lines], options.band) for lines in cut]
    return {
        "steps": grid.places.tolist(),
        "lines": [_told(line, options.log, rounded=grid.each > 1) for line in drawn],
        "each": grid.each,
        "log": options.log,
        "hidden": sum(int((line.values <= 0).sum()) for line in drawn) if options.log else 0,
        "axis": "version" if all(line.dots for lines in groups for line in lines) else "step",
    }


@dataclass(frozen=True)
class Grid:
    """Places of an axis; where there are too many, one for `each` steps, the last of them."""

    places: NDArray[np.int64]
    each: int

    @classmethod
    def over(cls, axes: Sequence[NDArray[np.int64]]) -> "Grid":
        """Of all lines together."""
        steps = np.unique(np.concatenate([*axes, np.empty(0, np.int64)]))
        if len(steps) <= MOST_POINTS:
            return cls(steps, 1)
        each = -(-int(steps[-1] - steps[0] + 1) // MOST_POINTS)
        parts = (steps - steps[0]) // each
        return cls(steps[np.append(parts[1:] != parts[:-1], True)], each)

    def thinned(self, line: Series, extremes: bool) -> Series:
        """The line at the places of the axis."""
        part = np.searchsorted(self.places, line.at)
        mean = self._means(line.values, part)
        low, high = (None if band is None else self._means(band, part) for band in (line.low, line.high))
        if line.raw is not None:
            mean = self._reduced(np.fmax, np.where(np.isfinite(line.values), np.arange(len(part)), np.nan), part)
            mean = np.where(np.isfinite(mean), line.values[np.nan_to_num(mean).astype(int)], np.nan)
        seen = line.values if line.raw is None else line.raw
        if self.each > 1 and extremes and not line.dots:
            low, high = self._reduced(np.fmin, seen, part), self._reduced(np.fmax, seen, part)
        raw = None if line.raw is None else self._means(line.raw, part)
        return Series(line.label, self.places, mean, low, high, raw, line.dots)

    def _means(self, values: Values, part: NDArray[np.int64]) -> Values:
        counts = np.bincount(part, np.isfinite(values), len(self.places)).astype(np.float64)
        sums = np.bincount(part, np.nan_to_num(values), len(self.places)).astype(np.float64)
        return _ratio(sums, counts)

    def _reduced(self, by: np.ufunc, values: Values, part: NDArray[np.int64]) -> Values:
        found = np.full(len(self.places), np.nan)
        by.at(found, part, values)
        return found


def moving_average(values: Values, weight: float) -> Values:
    """Exponential moving average as TensorBoard draws it: y = s/(1 − wⁿ), s ← w·s + (1 − w)·v; gaps stay gaps."""
    last, count, found = 0.0, 0, []
    for value in values.tolist():
        if math.isnan(value):
            found.append(value)
            continue
        last, count = last * weight + (1.0 - weight) * value, count + 1
        found.append(last / (1.0 - weight**count))
    return np.array(found)


def _smoothed(line: Series, weight: float) -> Series:
    if not weight or line.dots:
        return line
    return replace(line, values=moving_average(line.values, weight), raw=line.values)


def _cut(line: Series, options: CurveOptions) -> Series:
    """The part in the range of steps."""
    first = -1 if options.first is None else options.first
    kept = (line.at >= first) & (line.at <= (np.iinfo(np.int64).max if options.last is None else options.last))
    low, high, raw = (None if one is None else one[kept] for one in (line.low, line.high, line.raw))
    return Series(line.label, line.at[kept], line.values[kept], low, high, raw, line.dots)


def _merged(lines: Sequence[Series], band: Band) -> Series:
    """The mean of lines at the same places, with a band of those that have a value there; one line is itself."""
    if len(lines) == 1:
        return lines[0]
    seen = [[v for v in column if math.isfinite(v)] for column in np.stack([line.values for line in lines]).T.tolist()]
    mean = _floats(sum(values) / len(values) if values else None for values in seen)
    halves = {
        "95": lambda: _floats(map(student_half, seen)),
        "std": lambda: _floats(float(np.std(values, ddof=1)) if len(values) > 1 else None for values in seen),
    }
    if band == "range":
        low, high = _floats(min(v, default=None) for v in seen), _floats(max(v, default=None) for v in seen)
    else:
        half = halves[band]()
        low, high = mean - half, mean + half
    return Series(lines[0].label, lines[0].at, mean, low, high, dots=lines[0].dots)


def _column(rows: Sequence[Mapping[str, Any]], line: FigureLine) -> Values:
    above = _floats(figure_of(row, line.figure) for row in rows)
    return _ratio(above, _floats(figure_of(row, line.per) for row in rows)) if line.per else above


def _ratio(above: Values, below: Values) -> Values:
    found = np.full(len(above), np.nan)
    np.divide(above, below, out=found, where=below != 0)
    return found


def figure_of(row: Mapping[str, Any], name: str) -> Any:
    """A recorded value by the name of its figure; None where there is none."""
    group, _, key = name.partition("/")
    holder = row if group == "trainer" else row.get(group)
    return holder.get(key) if isinstance(holder, Mapping) else None


def _floats(values: Iterable[Any]) -> Values:
    """Numbers; not a number for all that is none, or not finite."""
    found = [value if isinstance(value, float | int) and abs(value) < _HUGE else math.nan for value in values]
    made = np.array(found, np.float64)
    return np.where(np.isfinite(made), made, np.nan)


def _told(line: Series, log: bool, *, rounded: bool) -> dict[str, Any]:
    """A line as JSON; on a log axis nothing is at or below 0."""
    found: dict[str, Any] = {"label": line.label}
    for name, column in (("values", line.values), ("low", line.low), ("high", line.high), ("raw", line.raw)):
        if column is not None:
            told = [None if math.isnan(v) or (log and v <= 0) else v for v in column.tolist()]
            found[name] = [v if v is None else float(f"{v:.6g}") for v in told] if rounded else told
    return found | ({"points": True} if line.dots else {})
