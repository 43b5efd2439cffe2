"""Time accounting of a run directory: feeds the ledger of time and the queueing model from its files.

Shown as a page, and by `areal why RUN --slow` in a terminal: where a run's time went, by role and cause, and what one
change would bring.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from areal.errors import ConfigError
from areal.ledger.journal import read_journal
from areal.spec.numbers import lead
from areal.values.policy import version_of
from rich.console import Console
from rich.table import Table

from areal_view.index.record_index import RecordIndex, SampleRow
from areal_view.pages.runs import ShownRun
from areal_view.why import bubbles
from areal_view.why.pace import Constants, Forecast, constants_of, forecast

STEPS = 100  # the newest
_SAMPLES = 2400  # that are read: more change little
_ROWS = 200  # of one evaluation
_SHOWN = 20  # steps of the lanes
_RANKS = 32  # lanes of the trainer's ranks: those whose time differs the most from rank 0's
_WIDE = 1000.0
_LATE_S = 60.0  # an evaluation that ends so long after the last step may have begun before it


@dataclass(frozen=True)
class LaneBar:
    """A part of a lane, in thousandths of its width."""

    what: str
    x: float
    width: float


@dataclass(frozen=True)
class Lane:
    """What one role did, over the newest steps."""

    role: str
    bars: Sequence[LaneBar]


@dataclass(frozen=True)
class TimePage:
    """A run's time by role and cause."""

    first_step: int
    last_step: int
    seconds: float
    groups_read: int
    groups_asked: int  # those of them that are not recorded make a server look idle
    ledger: bubbles.Ledger
    constants: Constants
    forecast: Forecast
    lanes: Sequence[Lane]
    lanes_s: float  # how much time they show
    marks: Sequence[tuple[int, float]]  # step, and where in the lanes it ended


def time_page(run: ShownRun, steps: int = STEPS) -> TimePage | None:
    """None before two steps were trained, and for a training that generates nothing."""
    spec = run.resolved().get("job", {}).get("spec", {})
    algorithm, rollout = spec.get("algorithm") or {}, spec.get("rollout") or {}
    told = run.rows()[-steps:]
    rows = [_row(row) for row in told]
    if len(rows) < 2 or "batchSize" not in algorithm or "maxStaleness" not in algorithm:
        return None
    batch, staleness = int(algorithm["batchSize"]), int(algorithm["maxStaleness"])
    order, interval = rollout.get("order", "admission"), int((spec.get("weightSync") or {}).get("intervalSteps", 1))
    ahead = lead(order, rollout.get("ahead"), staleness, interval)
    gate = bubbles.Gate(batch, ahead, int(algorithm["maxSteps"]), staleness, order == "admission")
    first = batch * max(0, rows[0].step - staleness - 1)
    last = batch * (rows[-1].step + staleness + 2)
    chosen = range(first, last, max(1, (last - first) * int(algorithm.get("groupSize", 1)) // _SAMPLES))
    began, ended = rows[0].ended - rows[0].wall_s, rows[-1].ended
    named = [row for row in run.held_out() if row.get("name") and began < float(row.get("at") or 0.0) < ended + _LATE_S]
    index = run.index
    read_of: list[tuple[SampleRow, int | None]] = [(row, group) for group in chosen for row in index.samples(group)]
    read_of += [(row, None) for one in named for row in index.evaluated(str(one["name"]), _ROWS)]
    episodes = [one for row, group in read_of for one in _episode(index, row, group)]
    replicas = int((spec.get("generation") or {}).get("replicas", 1))
    servers = max(replicas, len({one.server for one in episodes}), 1)
    constants = constants_of(
        rows, episodes, gate, read_journal(run.layout.journal).batches,
        servers=servers, max_concurrent=int(rollout.get("maxConcurrentRollouts", batch)),
    )  # fmt: skip
    ledger = bubbles.account(rows, episodes, gate, [f"generation-{number}" for number in range(replicas)])
    seconds = ledger.ended - ledger.began
    read = len({one.group for one in episodes if one.group is not None and one.group < batch * (rows[-1].step + 1)})
    newest = batch * (rows[-1].step + 1) - 1  # later ones may not be made yet
    return TimePage(
        rows[0].step, rows[-1].step, seconds, read, sum(group <= newest for group in chosen), ledger, constants,
        forecast(constants, seconds / len(rows)),
        *_lanes(rows[-_SHOWN:], _ranks(told[-_SHOWN:]), episodes, ledger.roles),
    )  # fmt: skip


def _lanes(
    rows: Sequence[bubbles.StepTimes],
    ranks: Mapping[int, Sequence[bubbles.StepTimes]],
    episodes: Sequence[bubbles.EpisodeTimes],
    roles: Iterable[str],
) -> tuple[list[Lane], float, list[tuple[int, float]]]:
    began, ended = rows[0].ended - rows[0].wall_s, rows[-1].ended
    scale = _WIDE / (ended - began or 1.0)

    def bars(what: str, spans: Iterable[bubbles.BusySpan]) -> Iterator[LaneBar]:
        for span in spans:
            low, high = max(began, span.began), min(ended, span.ended)
            if high > low:
                yield LaneBar(what, round((low - began) * scale, 1), max(0.5, round((high - low) * scale, 1)))

    named = {"trainer, rank 0" if ranks else "trainer": rows, **{f"rank {rank}": own for rank, own in ranks.items()}}
    found = [
        Lane(name, [bar for what, spans in bubbles.trainer_spans(own).items() for bar in bars(what, spans)])
        for name, own in named.items()
    ]
    for role in roles:
        if role == "trainer":
            continue
        own = [one for one in episodes if one.server == role]
        evaluates = bubbles.union(span for one in own if one.group is None for span in one.generated)
        generates = bubbles.union(span for one in own if one.group is not None for span in one.generated)
        found.append(Lane(role, [*bars("evaluates", evaluates), *bars("generates", generates)]))
    for worker in sorted({one.worker for one in episodes if one.worker}):
        own = [one for one in episodes if one.worker == worker]
        waits = bubbles.union(span for one in own for span in one.generated)
        scores = bubbles.union(span for one in own for span in one.scored)
        found.append(Lane(worker, [*bars("scores", scores), *bars("generates", waits)]))
    scored = bubbles.union(span for one in episodes for span in one.scored)
    found.append(Lane("reward", [*bars("scores", scored)]))
    return found, ended - began, [(row.step, round((row.ended - began) * scale, 1)) for row in rows]


def _ranks(told: Sequence[Mapping[str, Any]]) -> dict[int, list[bubbles.StepTimes]]:
    """The rows of the trainer's other ranks, of as many as are shown; a rank that one row lacks is left out."""
    first = [_row(row) for row in told]
    spent = [row.get("rank_seconds") or {} for row in told]
    count = min(min((len(one) for one in by_phase.values()), default=0) for by_phase in spent)
    found = {
        rank + 1: [
            replace(row, seconds={str(phase): float(one[rank]) for phase, one in by_phase.items()})
            for row, by_phase in zip(first, spent, strict=True)
        ]
        for rank in range(count)
    }

    def differs(rank: int) -> float:
        pairs = zip(found[rank], first, strict=True)
        return sum(
            abs(own.seconds.get(phase, 0.0) - row.seconds.get(phase, 0.0))
            for own, row in pairs
            for phase in bubbles.PHASES
        )

    return {rank: found[rank] for rank in sorted(sorted(found, key=differs, reverse=True)[:_RANKS])}


def _row(row: Mapping[str, Any]) -> bubbles.StepTimes:
    seconds = {str(name): float(value or 0.0) for name, value in (row.get("seconds") or {}).items()}
    return bubbles.StepTimes(int(row["step"]), float(row.get("at") or 0.0), float(row.get("wall_s") or 0.0), seconds)


def _episode(index: RecordIndex, row: SampleRow, group: int | None) -> Iterator[bubbles.EpisodeTimes]:
    made = index.sample(row.place)
    if made is None:
        return
    spans = [span for sequence in made.sample.sequences for span in sequence.spans]
    by: dict[str, list[bubbles.BusySpan]] = {"generate": [], "score": []}
    for moment in made.moments:
        if moment.what in by:
            by[moment.what].append(bubbles.BusySpan(moment.began, moment.ended))
    server = spans[-1].server_id if spans else ""
    version = version_of(spans[0].policy_id) if spans else -1
    tokens = sum(span.end - span.start for span in spans)
    yield bubbles.EpisodeTimes(group, server, by["generate"], by["score"], version, tokens, made.sample.worker_id)


_LEAST = 0.0005  # of a role's time: less is not printed


def read_time(run_dir: Path, steps: int = STEPS) -> tuple[TimePage, list[Mapping[str, Any]], Mapping[str, Any]]:
    """A run's time, the metrics of its steps, and its job's fields. Raises ConfigError."""
    with tempfile.TemporaryDirectory(prefix="areal-index-") as cache:
        run = ShownRun(run_dir.name, run_dir.absolute(), Path(cache))
        try:
            run.index.refresh()
            while run.behind:
                time.sleep(0.05)
            page, rows, job = time_page(run, steps), run.rows()[-steps:], run.resolved().get("job", {})
        finally:
            run.close()
    if page is None:
        raise ConfigError(f"{run_dir} has no time to account for", fix="it needs two trained steps of an RL job")
    return page, rows, job.get("spec", {})


def show_slow(run_dir: Path, *, as_json: bool) -> None:
    """Print the ledger of time and the forecast."""
    page, _, _ = read_time(run_dir)
    if as_json:
        sys.stdout.write(json.dumps(asdict(page)) + "\n")
        return
    console = Console()
    console.print(_words(page), highlight=False, soft_wrap=True)
    console.print(_spent(page))
    console.print(_changes(page))
    console.print(page.forecast.bound, highlight=False, soft_wrap=True)


def _words(page: TimePage) -> str:
    steps = page.last_step - page.first_step + 1
    return (
        f"steps {page.first_step} to {page.last_step}: {page.seconds:.1f} s, {page.seconds / steps:.2f} s a step; "
        f"servers' time from {page.groups_asked} groups, of which {page.groups_read} are recorded"
    )


def _spent(page: TimePage) -> Table:
    grid = Table(box=None, padding=(0, 2), header_style="bold")
    for column in ("role", "cause"):
        grid.add_column(column)
    for column in ("share", "s a step"):
        grid.add_column(column, justify="right")
    steps = page.last_step - page.first_step + 1
    for role, causes in page.ledger.roles.items():
        for place, (cause, seconds) in enumerate(causes.items()):
            if seconds >= _LEAST * page.seconds:
                share = f"{seconds / page.seconds:.1%}"
                grid.add_row(role if place == 0 else "", cause, share, f"{seconds / steps:.3f}")
        grid.add_section()
    return grid


def _changes(page: TimePage) -> Table:
    told = page.forecast
    grid = Table(box=None, padding=(0, 2), header_style="bold")
    grid.add_column("one change, every process on hardware of its own")
    grid.add_column("steps an hour", justify="right")
    for change in told.changes:
        grid.add_row(change.what, f"{change.gain:+.0%}")
    grid.caption = f"the model takes {told.modelled_s:.2f} s a step of this run, {told.measured_s:.2f} s were measured"
    grid.caption_justify = "left"
    return grid
