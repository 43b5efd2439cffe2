"""Runs side by side: any figure over one axis, what came of each, the fields in which their jobs differ.

Runs whose jobs differ in the seed alone are one group: a mean with a band. Pure: records in, values out.
"""

import base64
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from areal.spec.job_fields import UNSET, leaves
from areal.values.interval import student_half

from areal_view.pages import curves
from areal_view.pages.overview import RunLine, line_of, number, spec_of
from areal_view.pages.runs import ShownRun

SEED = "seed"


@dataclass(frozen=True)
class RunGroup:
    """Runs that are one line of a chart."""

    label: str
    runs: Sequence[RunLine]


@dataclass(frozen=True)
class ComparisonPage:
    """Some runs beside each other; cells are one a group."""

    groups: Sequence[RunGroup]
    figures: Sequence[tuple[str, Sequence[str]]]  # name, cells
    fields: Sequence[tuple[str, Sequence[str]]]  # dotted path, cells as JSON
    same: int  # fields that are equal
    choice: curves.ChartChoice
    picture: str = ""  # of a study, over what varied: `study.svg` as a data address


def comparison_page(
    runs: Sequence[ShownRun], *, apart: bool, wanted: Sequence[str], text: str, options: curves.CurveOptions
) -> ComparisonPage:
    """The page. With `apart` each run is a group of its own."""
    groups = groups_of(runs, apart=apart)
    shown = [RunGroup(label, [line_of(run) for run in members]) for label, members in groups]
    jobs = [[dict(leaves(spec_of(run))) for run in members] for _, members in groups]
    names = sorted({name for members in jobs for fields in members for name in fields})
    values = {name: [dict.fromkeys(_shown(job, name) for job in members) for members in jobs] for name in names}
    cells = {name: [", ".join(found) for found in groups] for name, groups in values.items()}
    several = {name for name, groups in values.items() if any(len(found) > 1 for found in groups)}
    fields = [(name, found) for name, found in cells.items() if len(set(found)) > 1 or name in several]
    first = [*_held_out_chart(runs), *((name, _title(name, title)) for name, title in curves.usual_charts(*runs))]
    choice = curves.chosen_charts(runs, first, wanted, text, options)
    return ComparisonPage(shown, _figures(shown), fields, len(names) - len(fields), choice, _picture(runs))


def comparison_curve(
    runs: Sequence[ShownRun], name: str, options: curves.CurveOptions, *, apart: bool
) -> dict[str, Any] | None:
    """A chart with the first line of each group; None for a name that is no chart's."""
    found: list[list[curves.Series]] = []
    for label, members in groups_of(runs, apart=apart):
        lines = [replace(told[0], label=label) for run in members if (told := curves.lines_of(run, name))]
        if lines:
            found.append(lines)
    return curves.columns(found, options, extremes=len(found) == 1) if found else None


def groups_of(runs: Sequence[ShownRun], *, apart: bool) -> list[tuple[str, list[ShownRun]]]:
    """Runs by their job without its seed, in the order in which they were named."""
    found: dict[bytes | str, list[ShownRun]] = {}
    for run in runs:
        job = {name: value for name, value in leaves(spec_of(run)) if name != SEED}
        key = run.name if apart or not job else orjson.dumps(job, option=orjson.OPT_SORT_KEYS)
        found.setdefault(key, []).append(run)
    studies = {run.study for run in runs}
    prefix = f"{studies.pop()}:" if len(studies) == 1 else ""
    return [(_label([run.name.removeprefix(prefix) for run in members]), members) for members in found.values()]


def _label(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    letters = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*names, strict=False))
    same = re.sub(r"[-_.~]*(seed)?[-_.~]*$", "", "".join(column[0] for column in letters))
    return f"{same or names[0]} ({len(names)} seeds)"


def _picture(runs: Sequence[ShownRun]) -> str:
    """What `areal study` drew of these runs; nothing where it has not, or they are of several studies."""
    places = {run.layout.resolved.parent.parent for run in runs}
    file = places.pop() / "study.svg"
    if places or not all(run.study for run in runs) or not file.is_file():
        return ""
    return f"data:image/svg+xml;base64,{base64.b64encode(file.read_bytes()).decode()}"


def _held_out_chart(runs: Sequence[ShownRun]) -> list[tuple[str, str]]:
    metrics = {str(row.get("metric", "score")) for run in runs for row in run.held_out()[-1:]}
    return [("evaluation/mean", f"held-out {' or '.join(sorted(metrics)).replace('_', ' ')}")] if metrics else []


def _title(name: str, title: str) -> str:
    """Of a preset with several lines the first one is compared."""
    lines = next((lines for known, _, lines in curves.PRESETS if known == name), ())
    return f"{title}: {lines[0].label}" if len(lines) > 1 else title


def _figures(groups: Sequence[RunGroup]) -> list[tuple[str, list[str]]]:
    supervised = any(run.training != "RL" for group in groups for run in group.runs)
    rows: list[tuple[str, Callable[[RunLine], float | None], int]] = [
        ("step", lambda run: run.step, 0),
        ("loss, last 5 steps" if supervised else "reward, last 5 steps", lambda run: run.reward, 3),
        ("held-out, last", lambda run: run.held_out, 3),
        ("held-out, best", lambda run: run.best, 3),
        ("staleness, mean", lambda run: run.staleness, 2),
        ("seconds of a step", lambda run: run.seconds, 2),
    ]
    found = [("state", [", ".join(dict.fromkeys(run.state for run in group.runs)) for group in groups])]
    for title, read, digits in rows:
        cells = [_mean([read(run) for run in group.runs], digits) for group in groups]
        if set(cells) != {UNSET}:
            found.append((title, cells))
    return found


def _mean(values: Sequence[float | None], digits: int) -> str:
    """The mean with half its 95 % interval."""
    seen = [value for value in values if value is not None and math.isfinite(value)]
    if not seen:
        return UNSET
    half = student_half(seen)
    return number(sum(seen) / len(seen), digits) + (f" ± {number(half, digits)}" if half else "")


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return orjson.dumps(fields[name]).decode() if fields.get(name) is not None else UNSET
