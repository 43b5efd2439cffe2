"""Pages about whole runs: the list of runs, one run, its curves, its evaluations, two runs compared.

A comparison has the fields in which the jobs differ, their figures, one curve over the other. Pure: records in, values
out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import orjson
from areal.observe.live import Live
from areal.record.episode_ends import infra_share, read_ends
from areal.record.run_rows import sampled_figures_of

from areal_view.index.record_index import RecordIndex
from areal_view.pages.runs import ShownRun
from areal_view.why.causes import Diagnosis, why

CURVES = (
    ("reward", "reward", (("reward", "reward_mean"),)),
    ("staleness", "staleness, versions", (("mean", "staleness_mean"), ("max", "staleness_max"))),
    ("mismatch", "|log π trainer − log π engine|", (("mean", "logprob_mismatch"), ("with age", "behaviour_gap"))),
    ("speed", "trained tokens a second", (("tokens/s", "tokens_per_s"),)),
    ("entropy", "entropy, nats", (("entropy", "entropy"),)),
    ("gradient", "gradient norm", (("norm", "grad_norm"),)),
    ("loss", "loss", (("loss", "loss"),)),
    ("length", "tokens of a sequence, prompt included", (("mean", "tokens/sequences"),)),
    (
        "seconds",
        "seconds of a step, by phase",
        (
            ("waiting for samples", "seconds.wait"),
            ("taking the batch", "seconds.take"),
            ("log-probabilities before the update", "seconds.prox"),
            ("update", "seconds.train"),
            ("publishing", "seconds.publish"),
            ("checkpoint", "seconds.checkpoint"),
        ),
    ),
)
"""Name, title with unit, and (label, field of metrics.jsonl) of each chart; `a.b` is within a field, `a/b` a ratio."""

OWN = "figures."
"""Begins the name of a chart of a figure that the job's own code names."""

MOST_OWN = 48
MOST_POINTS = 2_000


@dataclass(frozen=True)
class RunLine:
    """A run in the list."""

    name: str
    state: str
    step: int
    max_steps: int | None
    reward: float | None
    held_out: float | None
    staleness: float | None
    rewards: Sequence[float]  # thinned, for the small picture


@dataclass(frozen=True)
class RunPage:
    """One run."""

    name: str
    state: str
    step: int
    max_steps: int | None
    max_staleness: int | None
    facts: Sequence[tuple[str, str]]
    why: Diagnosis | None
    live: Live | None
    outcomes: Mapping[str, int]
    steps: Sequence[Mapping[str, Any]]  # the newest rows of metrics
    charts: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class EvaluationLine:
    """One evaluation of held-out rows."""

    version: int
    name: str
    mean: float
    rows: int
    failed_rows: int
    recorded: int  # answers that are kept
    figures: Mapping[str, float]  # of sampled answers: avg@n, pass@k
    sets: Mapping[str, Mapping[str, float]]


def state_of(run: ShownRun) -> str:
    """running, Complete, Failed, … or that it was cut off."""
    live = run.live()
    if live is not None and live.goes_on:
        return "running"
    status = run.summary().get("status")
    if status is not None:
        return str(status)
    if run.resolved().get("namespace"):  # nobody writes the live file there: `kubectl get rljob` says what it does
        return "not ended"
    return "cut off" if live is not None or run.rows() else "not started"


def line_of(run: ShownRun) -> RunLine:
    """A run in one line."""
    rows, held_out = run.rows(), run.held_out()
    last = rows[-1] if rows else {}
    rewards = [float(row["reward_mean"]) for row in rows if row.get("reward_mean") is not None]
    return RunLine(
        run.name,
        state_of(run),
        _trained(rows),
        _spec(run, "algorithm", "maxSteps"),
        _mean(rewards[-5:]),
        float(held_out[-1]["mean"]) if held_out else None,
        last.get("staleness_mean"),
        thinned(rewards, 60),
    )


def page_of(run: ShownRun) -> RunPage:
    """Everything on a run's page but its curves."""
    rows, held_out, live = run.rows(), run.held_out(), run.live()
    last = rows[-1] if rows else {}
    rewards = [float(row["reward_mean"]) for row in rows if row.get("reward_mean") is not None]
    facts = [
        ("reward, last 5 steps", number(_mean(rewards[-5:]))),
        ("held-out", " → ".join(number(row["mean"]) for row in (held_out[:1] + held_out[-1:])) if held_out else "–"),
        ("staleness, mean", number(last.get("staleness_mean"))),
        ("tokens a second", number(last.get("tokens_per_s"), 0)),
        ("share of waiting", _share_of_waiting(rows[-10:])),
        ("teach nothing", _same(last)),
        ("infrastructure faults", _infra(run)),
    ]
    return RunPage(
        run.name,
        state_of(run),
        _trained(rows),
        _spec(run, "algorithm", "maxSteps"),
        _spec(run, "algorithm", "maxStaleness"),
        facts,
        why(live) if live is not None else None,
        live,
        run.index.outcomes(),
        list(reversed(rows[-12:])),
        charts_of(run),
    )


def charts_of(*runs: ShownRun) -> list[tuple[str, str]]:
    """Name and title of the charts that these runs have figures for: the usual ones, then those of their own code."""
    rows = [row for run in runs for row in _looked_at(run.rows())]
    usual = [(name, title) for name, title, fields in CURVES if not rows or _measured(rows, fields)]
    own = sorted({name for row in rows for name in row.get("figures") or ()})[:MOST_OWN]
    return [*usual, *((OWN + name, name) for name in own)]


def curve(run: ShownRun, name: str) -> dict[str, Any] | None:
    """One chart's columns: steps and a column for each of its lines; None for a name that is no chart's."""
    found = next((fields for known, _, fields in CURVES if known == name), None)
    if name.startswith(OWN):
        found = ((name.removeprefix(OWN), name),)
    if found is None:
        return None
    rows = run.rows()
    stride = max(1, math.ceil(len(rows) / MOST_POINTS))
    kept = [row for place, row in enumerate(rows) if place % stride == 0 or place == len(rows) - 1]
    lines: list[dict[str, Any]] = [
        {"label": label, "values": [_value(row, field) for row in kept]} for label, field in found
    ]
    steps = [int(row["step"]) for row in kept]
    if name == ("loss" if rows and "training" in rows[-1] else "reward"):
        by_version = {int(row["version"]): float(row["mean"]) for row in run.held_out()}
        at = sorted({*steps, *by_version})
        place = {step: number for number, step in enumerate(steps)}
        lines = [{**line, "values": [line["values"][place[s]] if s in place else None for s in at]} for line in lines]
        lines.append({"label": "held-out", "values": [by_version.get(step) for step in at], "points": True})
        steps = at
    return {"steps": steps, "lines": lines}


def evaluations_of(run: ShownRun, index: RecordIndex) -> list[EvaluationLine]:
    """By version, the newest first."""
    kept = {name: rows for name, rows, _ in index.evaluations()}
    return [
        EvaluationLine(
            int(row["version"]),
            str(row.get("name", "")),
            float(row["mean"]),
            int(row.get("rows", 0)),
            int(row.get("failed_rows", 0)),
            kept.get(str(row.get("name", "")), 0),
            sampled_figures_of(row),
            row.get("sets") or {},
        )
        for row in reversed(run.held_out())
    ]


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most `most` values, means of equal parts."""
    if len(values) <= most:
        return list(values)
    cuts = [round(part * len(values) / most) for part in range(most + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]


def number(value: Any, digits: int = 3) -> str:
    """A figure for people; a dash where there is none."""
    if value is None:
        return "–"
    return f"{float(value):,.{digits}f}"


def _value(row: Mapping[str, Any], field: str) -> Any:
    if "/" in field:
        above, below = (row.get(name) for name in field.split("/"))
        return above / below if above is not None and below else None
    outer, _, inner = field.partition(".")
    value = row.get(outer)
    return (value or {}).get(inner) if inner else value


def _looked_at(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The rows that say which figures there are: the first and the newest."""
    return (*rows[:1], *rows[-100:])


def _measured(rows: Sequence[Mapping[str, Any]], fields: Sequence[tuple[str, str]]) -> bool:
    return any(_value(row, field) is not None for row in rows for _, field in fields)


def _trained(rows: Sequence[Mapping[str, Any]]) -> int:
    return int(rows[-1]["step"]) + 1 if rows else 0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _spec(run: ShownRun, *path: str) -> Any:
    found: Any = run.resolved().get("job", {}).get("spec", {})
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _share_of_waiting(rows: Sequence[Mapping[str, Any]]) -> str:
    wall = sum(float(row.get("wall_s") or 0.0) for row in rows)
    waited = sum(float((row.get("seconds") or {}).get("wait") or 0.0) for row in rows)
    return f"{waited / wall:.0%} of the last {len(rows)} steps" if wall else "–"


def _infra(run: ShownRun) -> str:
    ends = read_ends(run.layout.episode_ends)
    share = infra_share(ends)
    return "–" if share is None else f"{share:.2%} of {sum(ends.values()):,} episodes"


def _same(row: Mapping[str, Any]) -> str:
    groups = row.get("groups")
    return f"{row.get('zero_variance_groups') or 0} of {groups} groups" if groups else "–"


UNSET = "–"


@dataclass(frozen=True)
class DiffPage:
    """Two runs beside each other."""

    a: RunLine
    b: RunLine
    fields: Sequence[tuple[str, str, str]]  # dotted path, its value in each as JSON
    same: int  # fields that are equal
    charts: Sequence[tuple[str, str]]  # name and title


def diff_page(a: ShownRun, b: ShownRun) -> DiffPage:
    """Differences of two runs."""
    mine, other = dict(leaves(_spec(a))), dict(leaves(_spec(b)))
    names = sorted({*mine, *other})
    rows = [(name, _shown(mine, name), _shown(other, name)) for name in names]
    fields = [row for row in rows if row[1] != row[2]]
    return DiffPage(line_of(a), line_of(b), fields, len(rows) - len(fields), charts_of(a, b))


def both_curves(a: ShownRun, b: ShownRun, name: str) -> dict[str, Any] | None:
    """A chart with the first line of each run; None for a name that is no chart's."""
    mine, other = curve(a, name), curve(b, name)
    if mine is None or other is None:
        return None
    steps = sorted({*mine["steps"], *other["steps"]})
    lines = []
    for run, told in ((a, mine), (b, other)):
        by_step = dict(zip(told["steps"], told["lines"][0]["values"], strict=True))
        lines.append({"label": run.name, "values": [by_step.get(step) for step in steps]})
    return {"steps": steps, "lines": lines}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of nested mappings by its dotted path."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return orjson.dumps(fields[name]).decode() if fields.get(name) is not None else UNSET
