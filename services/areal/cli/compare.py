"""`areal compare`: runs side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from areal.cli.runs import existing
from areal.errors import ConfigError
from areal.plan.resolved import ResolvedJob
from areal.stage.comparison import ComparedRun, read_run
from areal.stage.job_fields import UNSET, differing_fields, spec_fields


def compare_command(runs: Sequence[Path], *, as_json: bool) -> None:
    """Print the fields in which the runs' jobs differ, and the runs' figures."""
    if len(runs) < 2:
        raise ConfigError("one run has nothing to be compared with", fix="name two run directories or more")
    places = [existing(run) for run in runs]
    differences = differing_fields([spec_fields(ResolvedJob.load(place).job) for place in places])
    compared = [read_run(place) for place in places]
    if as_json:
        figures = {name: [run.figures[name] for run in compared] for name in compared[0].figures}
        print(json.dumps({"runs": [str(run) for run in runs], "fields": differences, "figures": figures}, indent=2))
        return
    Console().print(_table(compared, differences))


def _table(runs: Sequence[ComparedRun], differences: dict[str, list[Any]]) -> Table:
    grid = Table(box=None, padding=(0, 2), header_style="bold")
    grid.add_column("")
    for run in runs:
        grid.add_column(run.name, justify="right", overflow="fold")
    for name, values in differences.items():
        grid.add_row(name, *(_shown(value) for value in values), style="cyan")
    if not differences:
        grid.add_row("the jobs are equal", style="dim")
    grid.add_section()
    for name in runs[0].figures:
        grid.add_row(name, *(_shown(run.figures[name]) for run in runs))
    return grid


def _shown(value: Any) -> str:
    if value is None:
        return UNSET
    return f"{value:.3g}" if isinstance(value, float) else str(value)
