"""Static export: `report.html`, the pages of one run as one file without a server or a network.

The templates are those of `areal view`, with style, scripts and figures inside. It only reads the run directory, and
what can't be read is left out: a report without answers is better than none.
"""

import logging
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import jinja2
import orjson
from areal.errors import ArealError
from areal.plan.layout import RunLayout
from areal.plan.resolved import ResolvedJob
from areal.record.summary import cause_of
from areal.spec import explain
from areal.spec.locate import leaves
from markupsafe import Markup

from areal_view.index.record_index import RecordIndex
from areal_view.index.sample_text import texts_of, visible
from areal_view.pages import overview
from areal_view.pages.curves import curve, figure_of
from areal_view.pages.runs import ShownRun
from areal_view.pages.slow import time_page

# Sample answers of a run's last recorded step, for its report: the best, the worst, and some between.

_MOST = 6
_LETTERS = 2_000  # of a prompt or an answer: the page must stay small enough to be sent

Item = TypeVar("Item")


@dataclass(frozen=True)
class ShownSample:
    """One answer with its reward."""

    group: int
    index: int
    reward: float
    prompt: str
    answer: str


def last_answers(index: RecordIndex, step: int) -> list[ShownSample]:
    """Answers that step `step` trained, from the lowest reward to the highest; none where nothing is recorded."""
    rows = [row for one in index.groups(step)[: 4 * _MOST] for row in index.samples(one.group)]
    chosen = spread(sorted(rows, key=lambda row: row.reward), _MOST)
    found = [(row, index.sample(row.place)) for row in chosen]
    return [
        ShownSample(row.group, row.index, row.reward, *(_short(visible(text)) for text in texts_of(made)))
        for row, made in found
        if made is not None
    ]


def spread(values: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of the values, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}… ({len(text) - _LETTERS:,} letters more)"


log = logging.getLogger(__name__)

_PATIENCE_S = 10.0  # for the index of a long recording
_UNREADABLE = (OSError, sqlite3.Error, ArealError)

Value = TypeVar("Value")


def write(root: Path, summary: Mapping[str, Any]) -> Path:
    """Write `report.html` into the run directory `root`, whole or not at all. `summary` is what the run came to."""
    target = RunLayout(root).report
    part = target.with_name(".report.html.part")
    part.write_text(page(root, summary), encoding="utf-8")
    part.replace(target)
    return target


def page(root: Path, summary: Mapping[str, Any]) -> str:
    """The whole file."""
    with tempfile.TemporaryDirectory(prefix="areal-index-") as cache:
        run = ShownRun(root.name, root, Path(cache))
        try:
            _read("the recording", lambda: run.index.wait(_PATIENCE_S), None)
            return _rendered(run, summary)
        finally:
            run.close()


def _rendered(run: ShownRun, summary: Mapping[str, Any]) -> str:
    told = run.resolved().get("job", {}).get("metadata", {})
    name = told.get("name") or run.name  # in a pod all directories are alike
    shown = replace(overview.page_of(run), name=name, state=summary["status"], live=None, why=cause_of(summary))
    figures = [(name, title, Markup(_inline(curve(run, name)))) for name, title in shown.choice.charts]
    rows = run.rows()
    template = environment().get_template("report.html")
    return template.render(
        run=name,
        linked=False,
        page=shown,
        figures=figures,
        answers=_read(
            "answers", lambda: last_answers(run.index, int(rows[-1]["step"])) if rows else [], list[ShownSample]()
        ),
        about=_read("the job", lambda: _about(run), list[tuple[str, str]]()),
        evaluations=overview.evaluations_of(run, run.index),
        supervised=run.is_supervised,
        time=_read("its time", lambda: time_page(run), None),
        summary=[(name, value) for name, value in leaves(summary) if value or not name.startswith("restarts.")],
        fields=[(name, value) for name, value in leaves(overview.spec_of(run)) if value not in (None, {}, [])],
        style=Markup((STATIC / "uPlot.min.css").read_text() + (STATIC / "page.css").read_text()),
        scripts=[Markup((STATIC / name).read_text()) for name in ("uPlot.iife.min.js", "charts.js")],
    )


def _about(run: ShownRun) -> list[tuple[str, str]]:
    """Description of the run, as (subject, sentence)."""
    resolved = ResolvedJob.load(run.layout.resolved)
    first = [("start model", str(resolved.model_path)), ("seed", str(resolved.spec.seed))]
    return [*first, *explain(resolved.job, scores_itself=resolved.verifier is None)]


def _read(what: str, read: Callable[[], Value], otherwise: Value) -> Value:
    try:
        return read()
    except _UNREADABLE as error:
        log.warning("the report has no part about %s: %s", what, error)
        return otherwise


def _inline(value: Any) -> str:
    """JSON inside of a script element: no `<` may end it."""
    return orjson.dumps(value).decode().replace("<", "\\u003c")


# ---- The templates of the pages, for the server and for a static export alike


HERE = Path(__file__).parent
STATIC = HERE / "static"


def environment() -> jinja2.Environment:
    """Templates with what all of them use. `linked` says whether other pages are there to link to."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = overview.number
    made.filters["figure"] = figure_of
    made.filters["age"] = age
    made.filters["day"] = lambda at: f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
    made.globals["spark"] = spark
    made.globals["link"] = link
    made.globals["linked"] = True
    return made


def age(seconds: float) -> str:
    """As kubectl writes an age: `45s`, `12m`, `7h`, `3d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"


def link(query: Mapping[str, str], changes: Mapping[str, str]) -> str:
    """The query part of an address, with some parameters changed; those that are empty are left out."""
    return "?" + urlencode({name: value for name, value in {**query, **changes}.items() if value})


def spark(values: list[float], width: int = 120, height: int = 24) -> str:
    """Points of a small curve, for an SVG polyline."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = width / (len(values) - 1)
    return " ".join(
        f"{n * step:.1f},{height - 2 - (value - low) / span * (height - 4):.1f}" for n, value in enumerate(values)
    )
