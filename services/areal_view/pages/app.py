"""Routes of the page: each is a URL that answers as HTML or, with `?format=json`, as the same values.

Owns rendering and the stream of changes. Reads on threads; writes nothing.
"""

import asyncio
import base64
import itertools
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any
from urllib.parse import quote

import orjson
from areal.errors import ConfigError
from areal.spec.locate import UNSET, leaves
from areal.values.interval import student_half
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from areal_view.index import forms
from areal_view.index.forms import FORMS, written
from areal_view.pages import curves, detail, overview, reading
from areal_view.pages.curves import BANDS, CurveOptions, chosen_charts, curve, usual_charts
from areal_view.pages.login import PageAccess
from areal_view.pages.overview import RunLine, line_of, number, spec_of
from areal_view.pages.runs import Runs, ShownRun
from areal_view.pages.site import STATIC, environment
from areal_view.pages.slow import time_page

_LOOK_S = 2.0  # between two looks at the files of a run that a page follows
_NOT_YET = 202  # of what may be in the part of a recording that is not indexed yet
_LOOK_AGAIN = "2"  # seconds
_OTHERS = 20  # runs that one can be compared with
_LARGEST = 2**63 - 1

Page = Callable[[ShownRun, Request], Any]


class ViewHandlers:
    """The handlers; `runs` is what they show."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._templates = environment()

    def routes(self) -> list[Route | Mount]:
        """All of them."""
        pages: list[tuple[str, str, Page]] = [
            ("", "run.html", _overview),
            ("/steps/{step:int}", "step.html", _step),
            ("/groups/{group:int}", "group.html", _of_index(detail.group_page, "group")),
            ("/samples/{group:int}.{index:int}", "sample.html", _of_index(detail.sample_page, "group", "index")),
            ("/search", "search.html", lambda run, request: reading.sample_list(run, request.query_params)),
            ("/evals", "evals.html", lambda run, _: overview.evaluations_of(run, run.index)),
            ("/evals/{name}", "eval.html", _evaluation),
            ("/evals/{name}/{row:int}.{index:int}", "sample.html", _evaluated),
            ("/fleet", "fleet.html", lambda run, _: time_page(run)),
            ("/config", "config.html", lambda run, _: run.resolved()),
        ]
        tokens = _of_index(detail.token_columns, "group", "index", "place")
        return [
            Route("/", self._list),
            Route("/favicon.ico", lambda _: Response(status_code=204)),
            Route("/compare", self._compare),
            Route("/compare/curves", self._compare_curve),
            Route("/r/{run}/events", self._events),
            *(
                Route(f"/r/{{run}}/{part}", self._page(f"{part}.html", lambda run, _: overview.page_of(run)))
                for part in ("facts", "newest")
            ),
            Route("/r/{run}/curves", self._json(_curve)),
            Route("/r/{run}/samples.{form:str}", self._export),
            Route("/r/{run}/samples/{group:int}.{index:int}/tokens/{place:int}", self._json(tokens)),
            *(Route(f"/r/{{run}}{path}", self._page(template, page)) for path, template, page in pages),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    def _list(self, request: Request) -> Response:
        text, state = request.query_params.get("name", "").lower(), request.query_params.get("state", "")
        runs = [run for run in self._runs.all() if text in run.name.lower()]
        lines = [overview.line_of(run) for run in runs]
        return self._answer(request, "runs.html", [line for line in lines if state in ("", line.state)])

    def _compare(self, request: Request) -> Response:
        wanted, text, options = _wanted(request)
        runs, apart = self._compared(request)
        page = comparison_page(runs, apart=apart, wanted=wanted, text=text, options=options)
        return self._answer(request, "compare.html", page)

    def _compare_curve(self, request: Request) -> Response:
        runs, apart = self._compared(request)
        name = request.query_params.get("name", "")
        return _as_json(_there(comparison_curve(runs, name, _curve_options(request), apart=apart)))

    def _compared(self, request: Request) -> tuple[list[ShownRun], bool]:
        """The runs that are named, those of a study with it; whether runs of one job stay apart."""
        query = request.query_params
        known = {run.name: run for run in self._runs.all()}
        named = [_there(known.get(name)) for name in query.getlist("run")]
        of_study = [run for run in known.values() if run.study and run.study in query.getlist("study")]
        named += sorted(
            of_study,
            key=lambda run: [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", run.name)],
        )
        runs = list({run.name: run for run in named}.values())
        if not runs:
            raise HTTPException(404, "no run is named: choose some in the list of runs")
        return runs, query.get("seeds") == "apart"

    def _page(self, template: str, page: Page) -> Callable[[Request], Response]:
        def handler(request: Request) -> Response:
            run = self._run(request)
            value = _read(page, run, request)
            if value is None and (progress := run.progress) is not None and not progress.listed:
                answer = self._answer(request, "pending.html", progress, run)
                answer.status_code, answer.headers["refresh"] = _NOT_YET, _LOOK_AGAIN
                return answer
            return self._answer(request, template, _there(value), run)

        return handler

    def _json(self, page: Page) -> Callable[[Request], Response]:
        def handler(request: Request) -> Response:
            run = self._run(request)
            value = _read(page, run, request)
            if value is None and (progress := run.progress) is not None and not progress.listed:
                return Response(orjson.dumps(progress), _NOT_YET, media_type="application/json")
            return _as_json(_there(value))

        return handler

    async def _events(self, request: Request) -> Response:
        run = await asyncio.to_thread(self._run, request)
        return StreamingResponse(changes(run, request.is_disconnected), media_type="text/event-stream")

    def _export(self, request: Request) -> Response:
        run, form = self._run(request), request.path_params["form"]
        if form not in FORMS:
            raise HTTPException(404)
        found = _read(_found, run, request)
        headers = {"content-disposition": f'attachment; filename="{quote(run.name)}.{form}"'}
        try:
            chunks = written(form, run.index, found, run.name)
        except ConfigError as error:
            raise HTTPException(501, f"{error.message}; {error.fix}") from error
        return StreamingResponse(chunks, media_type=FORMS[form], headers=headers)

    def _run(self, request: Request) -> ShownRun:
        run: ShownRun = _there(self._runs.find(request.path_params["run"]))
        return run

    def _answer(self, request: Request, template: str, value: Any, run: ShownRun | None = None) -> Response:
        if request.query_params.get("format") == "json":
            return _as_json(value)
        text = self._templates.get_template(template).render(
            page=value,
            run=run.name if run else "",
            path=request.url.path,
            query=dict(request.query_params),
            pairs=request.query_params.multi_items(),
            supervised=run is not None and run.is_supervised,
            progress=run.progress if run else None,
            others=[one.name for one in self._runs.all() if run and one is not run][:_OTHERS],
        )
        return HTMLResponse(text)


def app_of(runs: Runs) -> ASGIApp:
    """The application, which lets everybody in."""
    return Starlette(routes=ViewHandlers(runs).routes())


def make_app(runs: Runs, *, key: str, port: int) -> ASGIApp:
    """The application behind the check of a key."""
    return PageAccess(app_of(runs), key=key, port=port)


async def changes(run: ShownRun, gone: Callable[[], Any], every_s: float = _LOOK_S) -> AsyncIterator[bytes]:
    """Server-sent events: `curves` and `facts`, whenever a file that they are made of changed."""
    before: dict[str, tuple[int, ...]] = {}
    yield b": connected\n\n"
    while not await gone():
        found = await asyncio.to_thread(run.stamps)
        for name, stamp in found.items():
            if before and stamp != before[name]:
                yield f"event: {name}\ndata: {{}}\n\n".encode()
        before = found
        await asyncio.sleep(every_s)


def _read(page: Page, run: ShownRun, request: Request) -> Any:
    """The values of a page; parameters that make no sense are the visitor's fault."""
    try:
        return page(run, request)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error


def _step(run: ShownRun, request: Request) -> Any:
    asked = request.query_params
    low, high = (reading.number_of(asked, name) for name in ("low", "high"))
    chosen = (low, high) if low is not None and high is not None else None
    return detail.step_page(run.index, _int(request, "step"), chosen, max(1, int(asked.get("page") or 1)))


def _of_index(found: Callable[..., Any], *names: str) -> Page:
    """A page of the recording, found by the numbers of those names in the address."""
    return lambda run, request: found(run.index, *(_int(request, name) for name in names))


def _found(run: ShownRun, request: Request) -> Any:
    index = run.index
    return index.listed(reading.query_of(request.query_params, list(index.figures())), forms.MOST)


def _evaluation(run: ShownRun, request: Request) -> Any:
    found = reading.sample_list(run, request.query_params, request.path_params["name"])
    return found if found.total else None


def _evaluated(run: ShownRun, request: Request) -> Any:
    index = _int(request, "index")
    answers = run.index.samples(_int(request, "row"), evaluation=request.path_params["name"])
    rows = [row for row in answers if row.index == index]
    return detail.evaluated_page(run.index, rows[-1].place) if rows else None


def _overview(run: ShownRun, request: Request) -> Any:
    wanted, text, options = _wanted(request)
    parts = reading.trends_of(run)
    found = overview.page_of(run, chosen_charts([run], usual_charts(run), wanted, text, options))
    return replace(found, parts=parts, conflicts=reading.conflicts_of(parts))


def _curve(run: ShownRun, request: Request) -> Any:
    return curve(run, request.query_params.get("name", ""), _curve_options(request))


def _wanted(request: Request) -> tuple[list[str], str, CurveOptions]:
    """The charts that an address names, the words that names must have, and how curves are drawn."""
    return request.query_params.getlist("chart"), request.query_params.get("figure", ""), _curve_options(request)


def _curve_options(request: Request) -> CurveOptions:
    try:
        smooth, first, last = (reading.number_of(request.query_params, name) for name in ("smooth", "from", "to"))
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
    if not 0.0 <= (smooth or 0.0) < 1.0:
        raise HTTPException(400, "smooth is no number from 0 to below 1")
    band = next((one for one in BANDS if one == request.query_params.get("band")), BANDS[0])
    low, high = (None if step is None else round(max(-1.0, min(step, 2.0**53))) for step in (first, last))
    return CurveOptions(smooth or 0.0, bool(request.query_params.get("log")), low, high, band)


def _int(request: Request, name: str) -> int:
    value = int(request.path_params[name])
    if value > _LARGEST:
        raise HTTPException(404)
    return value


def _there(value: Any) -> Any:
    if value is None:
        raise HTTPException(404, "nothing of this is recorded: a run keeps a share of it, see spec.recording")
    return value


def _as_json(value: Any) -> Response:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


# ---- Runs side by side: any figure over one axis, what came of each, the fields in which their jobs differ


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
