"""Plan of a job on N GPUs, printed: `areal plan`. The constants are a run's own, or those of a model on a card."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

from areal.errors import ConfigError
from areal.spec import RLJob
from areal.spec.numbers import ahead
from rich.console import Console
from rich.table import Table

from areal_view.pages.slow import read_time
from areal_view.why import scale

_STEPS = 100  # the newest of a run


def show_plan(job: RLJob, gpus: Sequence[int], run: Path | None, card: str | None, *, as_json: bool) -> None:
    """Print a row for each number of GPUs and way to use them. Raises ConfigError."""
    if job.spec.supervised is not None:
        raise ConfigError("a job that only trains on data generates nothing", fix="plan a job with an algorithm")
    speeds, words = _of_card(job, card) if card is not None else _of_run(job, run)
    rows: list[tuple[int, str, scale.Split]] = []
    for count in sorted(set(gpus)):
        rows.append((count, "by turns, η 0", scale.by_turns(speeds, count)))
        if count > speeds.server_gpus:
            chosen = scale.best(speeds, count)
            own = speeds.server_gpus * max(1, count * 3 // 4 // speeds.server_gpus)
            rows.append((count, "apart, best", chosen))
            if own not in (chosen.generation, count):
                rows.append((count, "apart", scale.split(speeds, own, count - own)))
    if as_json:
        told = [{"gpus": count, "how": how, **asdict(one)} for count, how, one in rows]
        print(json.dumps({"constants": words, "rows": told}))
        return
    console = Console()
    for line in words:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_grid(rows))


def _grid(rows: Sequence[tuple[int, str, scale.Split]]) -> Table:
    grid = Table(box=None, padding=(0, 1), header_style="bold")
    for column in ("GPUs", "gen", "train", "s/step", "tokens/s", "gen idle", "train idle", "age"):
        grid.add_column(column, justify="right", no_wrap=True)
    grid.add_column("", no_wrap=True)
    for count, how, one in rows:
        sides = f"{one.generation}", f"{one.training or one.generation}"
        shown = (
            f"{one.step_s:,.{0 if one.step_s >= 100 else 2}f}",
            f"{one.tokens_per_s:,.0f}" if one.tokens_per_s else "",
        )
        idle = f"{one.generation_waits:.0%}", f"{one.trainer_waits:.0%}"
        grid.add_row(f"{count}", *sides, *shown, *idle, f"{one.age:.1f}", how)
    return grid


def _of_card(job: RLJob, name: str) -> tuple[scale.Speeds, list[str]]:
    found = {card.name: card for card in scale.CARDS}
    if name not in found:
        raise ConfigError(f"the table has no {name}", fix=f"take one of {', '.join(found)}, or --run of a run")
    card, algorithm, rollout = found[name], job.spec.algorithm, job.spec.rollout
    work = scale.Workload(
        algorithm.batch_size, algorithm.group_size, rollout.sampling.max_new_tokens, ahead(job),
        algorithm.max_staleness, rollout.order == "admission", rollout.max_concurrent_rollouts,
    )  # fmt: skip
    return scale.drawn(card, work), [
        f"constants of {card.name}: {card.source}, measured on {card.gpus} GPUs",
        f"answers as there: half longer than {card.median_tokens:,.0f} tokens; none than the job's {work.longest:,}",
    ]


def _of_run(job: RLJob, run: Path | None) -> tuple[scale.Speeds, list[str]]:
    place = run or Path("runs") / job.metadata.name
    if run is None and not (place / "resolved.json").is_file():
        named = ", ".join(card.name for card in scale.CARDS)
        raise ConfigError(
            f"there is no {place} to take constants from", fix=f"name a run by --run, or a model by --card: {named}"
        )
    page, rows, spec = read_time(place, _STEPS)
    engine, trainer = (spec.get("generation") or {}).get("engine") or {}, spec.get("trainer") or {}
    ranks = int(trainer.get("replicas", 1)) * int(trainer.get("procPerNode", 1))
    server = int(engine.get("tensorParallel", 1))
    tokens = [float(row.get("tokens") or 0.0) for row in rows]
    fixed, error = scale.fixed_and_error(tokens, page.constants.work_s)
    asked, had = job.spec.algorithm, spec.get("algorithm") or {}
    if (asked.batch_size, asked.group_size) != (had.get("batchSize"), had.get("groupSize")):
        sizes = f"{had.get('batchSize')} × {had.get('groupSize')}, not {asked.batch_size} × {asked.group_size}"
        raise ConfigError(f"the steps of {place} have {sizes} samples", fix="take constants of a run of the job's size")
    measured = page.constants.servers * server + ranks
    gate = replace(
        page.constants, ahead=ahead(job), staleness=asked.max_staleness,
        admission_order=job.spec.rollout.order == "admission", max_concurrent=job.spec.rollout.max_concurrent_rollouts,
    )  # fmt: skip
    return scale.RunSpeeds(gate, ranks, server, fixed, fmean(tokens)), [
        f"constants of {place}: steps {page.first_step} to {page.last_step}, {page.constants.servers} servers of "
        f"{server} and {ranks} trainer processes, {measured} places in all",
        f"of a step {fixed:.2f} s don't shrink with more trainers: a line through its odd steps, {error:.1%} off on "
        f"the even ones; the model takes {page.forecast.modelled_s:.2f} s a step of this run, "
        f"{page.forecast.measured_s:.2f} s were measured",
        "its servers are taken to be as full as they were, and every process to have hardware of its own",
    ]
