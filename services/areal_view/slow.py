"""`areal why RUN --slow`: where a run's time went, by role and cause, and what one change would bring."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from areal.errors import ConfigError
from rich.console import Console
from rich.table import Table

from areal_view.pages.runs import ShownRun
from areal_view.pages.slow import TimePage, time_page

_LEAST = 0.0005  # of a role's time: less is not printed


def show_slow(run_dir: Path, *, as_json: bool) -> None:
    """Print the ledger of time and the forecast."""
    with tempfile.TemporaryDirectory(prefix="areal-index-") as cache:
        run = ShownRun(run_dir.name, run_dir.absolute(), Path(cache))
        try:
            run.index.refresh()
            while run.behind:
                time.sleep(0.05)
            page = time_page(run)
        finally:
            run.close()
    if page is None:
        raise ConfigError(f"{run_dir} has no time to account for", fix="it needs two trained steps of an RL job")
    if as_json:
        sys.stdout.write(json.dumps(asdict(page)) + "\n")
        return
    console = Console()
    console.print(_words(page), highlight=False, soft_wrap=True)
    console.print(_spent(page))
    console.print(_changes(page))


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
