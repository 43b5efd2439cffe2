"""`areal eval humaneval`: judges, shows a bar meanwhile and a table afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from areal.errors import ConfigError, ExitCode
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from areal_judge.evaluate import humaneval
from areal_judge.evaluate.attempts import Attempt, AttemptOutcome, judge_all
from areal_judge.evaluate.local_judge import Demands, local_judge
from areal_judge.evaluate.report import Report, why
from areal_judge.judge.values import Options
from areal_judge.sandbox.values import Tier

FAILED = 1  # the programs, not us
_SHOWN = 40  # failures listed for people; --json has all


@dataclass(frozen=True)
class Asked:
    """The command's options."""

    canonical: bool = False
    samples: Path | None = None
    wrong: bool = False
    as_json: bool = False
    limit: int | None = None
    jobs: int = 0
    ks: tuple[int, ...] = (1,)
    timeout_s: float = 10.0
    min_tier: str = "T2"
    highest_tier: str = "T4"


def humaneval_command(asked: Asked) -> int:
    """Judge and report; answers the exit code."""
    if [asked.canonical, asked.samples is not None, asked.wrong].count(True) != 1:
        raise ConfigError("what is to be judged?", fix="give one of --canonical, --samples FILE.jsonl, --wrong")
    if any(k < 1 for k in asked.ks):
        raise ConfigError("pass@k needs k of at least 1", fix="give --k 1")
    attempts, tasks = _attempts(asked)
    report = asyncio.run(_judge(asked, attempts, tasks))
    if asked.as_json:
        print(json.dumps(report.to_json(asked.ks)))
    else:
        _show(report, asked, Console())
    if report.unjudged:
        return int(ExitCode.INFRA)
    if asked.canonical:
        return int(ExitCode.DONE) if report.passed == report.total else FAILED
    return FAILED if asked.wrong and report.passed else int(ExitCode.DONE)


def _attempts(asked: Asked) -> tuple[list[Attempt], int]:
    every = humaneval.problems(asked.timeout_s)
    tasks = dict(list(every.items())[: asked.limit])
    if asked.canonical:
        return humaneval.canonical(tasks), len(tasks)
    if asked.wrong:
        return humaneval.deliberately_wrong(tasks), len(tasks)
    assert asked.samples is not None
    return humaneval.samples(asked.samples, tasks, every), len(tasks)


async def _judge(asked: Asked, attempts: list[Attempt], tasks: int) -> Report:
    jobs = asked.jobs or os.cpu_count() or 1
    demands = Demands(Tier[asked.min_tier], Tier[asked.highest_tier], asked.min_tier == "T0", zygotes=min(jobs, 8))
    options = Options(min_tier=demands.min_tier, total_s=2 * asked.timeout_s)
    async with local_judge(demands) as (judge, _):
        began = time.monotonic()
        with _bar(len(attempts)) as bar:
            outcomes = await judge_all(judge, attempts, options, jobs, bar)
        return Report(outcomes, tasks, time.monotonic() - began)


class _Bar:
    """Counts on a bar."""

    def __init__(self, shown: Progress, total: int) -> None:
        self._shown = shown
        self._task = shown.add_task("judging", total=total, passed=0)
        self._passed = 0

    def __call__(self, outcome: AttemptOutcome) -> None:
        self._passed += outcome.passed
        self._shown.update(self._task, advance=1, passed=self._passed)


@contextmanager
def _bar(total: int) -> Iterator[_Bar]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[passed]} passed"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield _Bar(shown, total)


def _show(report: Report, asked: Asked, console: Console) -> None:
    rows = report.unjudged + (
        [outcome for outcome in report.outcomes if outcome.passed] if asked.wrong else report.failures
    )
    if rows:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for title in ("task", "what", "sample", "status", "flags", "why"):
            table.add_column(title)
        for outcome in rows[:_SHOWN]:
            judgement, attempt = outcome.judgement, outcome.attempt
            flags = " ".join(sorted(flag.value for flag in judgement.flags))
            table.add_row(
                attempt.task_id, attempt.kind, str(attempt.sample), judgement.status.value, flags, why(outcome)[:100]
            )
        console.print(table)
        if len(rows) > _SHOWN:
            console.print(f"… and {len(rows) - _SHOWN} more; --json lists all")
    facts = report.to_json(asked.ks)
    for kind, counts in facts["kinds"].items() if asked.wrong else ():
        console.print(f"{kind}: {counts['passed']}/{counts['total']} passed", highlight=False)
    console.print(f"passed {report.passed}/{report.total}", style="bold", highlight=False)
    if asked.samples:
        console.print(f"tasks attempted: {report.attempted}/{report.tasks}", highlight=False)
        for k in asked.ks:
            value = report.pass_at(k)
            text = f"{value:.4f}" if value is not None else "needs that many samples of every attempted task"
            console.print(f"pass@{k}: {text}", highlight=False)
    if report.unjudged:
        console.print(f"not judged: {len(report.unjudged)}; they count as neither", style="red", highlight=False)
    console.print(
        f"tier {facts['tier']}, tests {facts['integrity']}, {report.wall_s:.1f} s", style="dim", highlight=False
    )
