"""Pages about whole runs: the list of runs, one run, its evaluations. Pure: records in, values out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from areal.observe.causes import why
from areal.observe.live import Diagnosis, Live
from areal.record.episode_ends import infra_share, read_counts, read_ends, wasted_text
from areal.record.run_rows import evaluation_figures
from areal.yaml_file.table import read_table

from areal_view.index.record_index import RecordIndex
from areal_view.pages.curves import ChartChoice, chosen_charts, figure_of, score_interval, usual_charts
from areal_view.pages.reading import PartConflict, PartTrend
from areal_view.pages.runs import ShownRun

StepColumn = tuple[str, str, int | None]
"""Title, figure and decimals of a column of the newest steps; without decimals as short as it can be."""

_COLUMNS: Mapping[str, Sequence[StepColumn]] = {
    kind: [tuple(column) for column in columns]
    for kind, columns in read_table("areal_view.pages", "figures.yaml")["columns"].items()
}


_COUNTED = ("mean", "rows", "failed_rows")


@dataclass(frozen=True)
class RunLine:
    """A run in the list."""

    name: str
    state: str
    step: int
    max_steps: int | None
    reward: float | None  # mean of the last 5 steps, of a supervised training the loss
    held_out: float | None
    best: float | None  # held-out: the least loss, else the greatest figure
    staleness: float | None
    rewards: Sequence[float]  # thinned, for the small picture; or losses
    training: str  # RL, SFT, …
    study: str
    began: float  # unix seconds
    seconds: float | None  # of a step, mean of the last 100


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
    columns: Sequence[StepColumn]  # of them, those that have a value
    choice: ChartChoice
    parts: Sequence[PartTrend] = ()
    conflicts: Sequence[PartConflict] = ()


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
    intervals: Mapping[str, tuple[float, float]]  # of the means, at 95 %, by set; of all rows under the empty name


@dataclass(frozen=True)
class EvaluationsPage:
    """All evaluations of a run."""

    metric: str  # `mean` of scores, or `loss`, …
    lines: Sequence[EvaluationLine]
    choice: ChartChoice


def state_of(run: ShownRun) -> str:
    """running, Complete, Failed, … or that it was cut off."""
    live = run.live()
    if live is not None and live.goes_on:
        return "running"
    if live is not None and not live.ended:
        return "cut off"  # a summary beside it is of the run that it resumed
    status = run.summary().get("status")
    if status is not None:
        return str(status)
    if run.resolved().get("namespace"):  # nobody writes the live file there: `kubectl get rljob` says what it does
        return "not ended"
    return "cut off" if live is not None or run.rows() else "not started"


def line_of(run: ShownRun) -> RunLine:
    """A run in one line."""
    rows, held_out = run.rows(), run.held_out()
    rewards = _scores(run, rows)
    seconds = [row["wall_s"] for row in rows[-100:] if isinstance(row.get("wall_s"), float | int)]
    return RunLine(
        run.name, state_of(run), _trained(rows), _max_steps(run), _mean(rewards[-5:]),
        float(held_out[-1]["mean"]) if held_out else None, _best(held_out),
        rows[-1].get("staleness_mean") if rows else None,
        thinned(rewards, 60), run.training, run.study, run.began, _mean(seconds),
    )  # fmt: skip


def page_of(run: ShownRun, choice: ChartChoice | None = None) -> RunPage:
    """Everything on a run's page but its curves."""
    rows, live = run.rows(), run.live()
    newest = list(reversed(rows[-12:]))
    columns = _COLUMNS["supervised" if run.is_supervised else "rl"]
    return RunPage(
        run.name, state_of(run), _trained(rows), _max_steps(run), spec_of(run, "algorithm", "maxStaleness"),
        _supervised_facts(run, rows) if run.is_supervised else _rl_facts(run, rows),
        why(live) if live is not None else None, live, run.index.outcomes(), newest,
        [one for one in columns if any(figure_of(row, one[1]) is not None for row in newest)],
        choice or chosen_charts([run], usual_charts(run)),
    )  # fmt: skip


def _rl_facts(run: ShownRun, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    last = rows[-1] if rows else {}
    return [
        ("reward, last 5 steps", number(_mean(_scores(run, rows)[-5:]))),
        ("held-out", _first_and_last(run.held_out())),
        ("staleness, mean", number(last.get("staleness_mean"))),
        ("tokens a second", number(last.get("tokens_per_s"), 0)),
        ("share of waiting", _share_of_waiting(rows[-10:])),
        ("teach nothing", _same(last)),
        ("infrastructure faults", _infra(run)),
        ("wasted tokens", wasted_text(read_counts(run.layout.episode_ends))),
    ]


def _supervised_facts(run: ShownRun, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    last, held_out = rows[-1] if rows else {}, run.held_out()
    found = [("training", run.training), ("loss, last 5 steps", number(_mean(_scores(run, rows)[-5:])))]
    if held_out:
        found.append(
            (f"held-out {str(held_out[-1].get('metric', 'mean')).replace('_', ' ')}", _first_and_last(held_out))
        )
    if last.get("pair_accuracy") is not None:
        found.append(("pairs ranked right", number(last["pair_accuracy"])))
    sums = [("rows trained", "rows"), ("tokens trained", "trained_tokens")]
    found += [(title, number(sum(row.get(name) or 0 for row in rows), 0)) for title, name in sums]
    passes = [("passes over the rows", number(last["epoch"] + 1, 0))] if last.get("epoch") is not None else []
    return [*found, *passes, ("tokens a second", number(last.get("tokens_per_s"), 0))]


def _scores(run: ShownRun, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Rewards by step; of a training on fixed rows its losses."""
    name = "loss" if run.is_supervised else "reward_mean"
    return [row[name] for row in rows if isinstance(row.get(name), float | int)]


def _best(held_out: Sequence[Mapping[str, Any]]) -> float | None:
    choose = min if held_out and held_out[-1].get("metric") == "loss" else max
    return choose((float(row["mean"]) for row in held_out), default=None)


def _first_and_last(held_out: Sequence[Mapping[str, Any]]) -> str:
    return " → ".join(number(row["mean"]) for row in (held_out[0], held_out[-1])) if held_out else "–"


def _max_steps(run: ShownRun) -> int | None:
    told = spec_of(run, "training" if run.is_supervised else "algorithm", "maxSteps")
    live = run.live() if told is None else None  # epochs are counted where the rows are
    return int(told) if told is not None else (live.max_steps or None) if live is not None else None


def evaluations_of(run: ShownRun, index: RecordIndex) -> EvaluationsPage:
    """By version, the newest first."""
    kept = {name: rows for name, rows, _ in index.evaluations()}
    lines = [_evaluation(row, kept) for row in reversed(run.held_out())]
    metric = str(run.held_out()[-1].get("metric", "mean")) if lines else "mean"
    names = {name for one in lines for name in (*one.figures, *(f"{each}/mean" for each in one.sets))}
    charts = [("evaluation/mean", f"held-out {metric.replace('_', ' ')}")] if lines else []
    charts += [(f"evaluation/{name}", name.removesuffix("/mean")) for name in sorted(names - {metric})]
    return EvaluationsPage(metric, lines, chosen_charts([run], charts))


def _evaluation(row: Mapping[str, Any], kept: Mapping[str, int]) -> EvaluationLine:
    name, mean, rows = str(row.get("name", "")), float(row["mean"]), int(row.get("rows", 0))
    sets: Mapping[str, Mapping[str, float]] = row.get("sets") or {}
    told = {key.removeprefix("evaluation/"): value for key, value in evaluation_figures(row).items()}
    figures = {key: value for key, value in told.items() if "/" not in key and key not in _COUNTED}
    means = {"": (mean, rows), **{key: (one.get("mean"), one.get("rows")) for key, one in sets.items()}}
    found = {key: score_interval(value, count, row.get("metric")) for key, (value, count) in means.items()}
    intervals = {key: one for key, one in found.items() if one is not None}
    return EvaluationLine(
        int(row["version"]),
        name,
        mean,
        rows,
        int(row.get("failed_rows", 0)),
        kept.get(name, 0),
        figures,
        sets,
        intervals,
    )


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most `most` values, means of equal parts."""
    if len(values) <= most:
        return list(values)
    cuts = [round(part * len(values) / most) for part in range(most + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]


def number(value: Any, digits: int | None = 3) -> str:
    """A figure for people; a dash where there is none."""
    if not isinstance(value, float | int):
        return "–"
    return f"{float(value):.3g}" if digits is None else f"{float(value):,.{digits}f}"


def _trained(rows: Sequence[Mapping[str, Any]]) -> int:
    return int(rows[-1]["step"]) + 1 if rows else 0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def spec_of(run: ShownRun, *path: str) -> Any:
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
