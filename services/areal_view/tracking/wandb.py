"""Weights & Biases as a tracker: an online server, or files of its offline mode."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal.errors import ConfigError

from areal_view.tracking.rows import STEP, VERSION, FigureRow
from areal_view.tracking.tracker import Ending, TrackedRun, package


class Wandb:
    """A row's number is W&B's step, so that a row which arrived already is dropped; charts have axes of their own."""

    sure = False

    def __init__(self, tracked: TrackedRun) -> None:
        self._tracked = tracked
        self._run: Any = None

    @property
    def place(self) -> str:
        """The run's page, or the command that uploads its files."""
        if self._run.offline:
            return f"upload: wandb sync {Path(self._run.dir).parents[1]}/offline-run-*-{self._tracked.uid}"
        return str(self._run.url)

    def begin(self, known: int) -> int:
        """An online server tells what it has."""
        wandb, tracked = package("wandb"), self._tracked
        quiet = wandb.Settings(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True
        )
        directory = None if "WANDB_DIR" in os.environ else str(tracked.directory)
        self._run = wandb.init(
            project=tracked.project, id=tracked.uid, name=tracked.name, config=dict(tracked.config), dir=directory,
            resume="allow", settings=quiet,
        )  # fmt: skip
        if self._run.disabled:
            raise ConfigError("W&B is disabled by its settings", fix="set WANDB_MODE=online or WANDB_MODE=offline")
        for axis, group in ((STEP, "trainer/*"), (STEP, "seconds/*"), (VERSION, "evaluation/*")):
            self._run.define_metric(axis)
            self._run.define_metric(group, step_metric=axis)
        if self._run.offline:
            return known
        return int(self._run.step) if self._run.resumed else 0

    def send(self, rows: Sequence[FigureRow], first: int) -> None:
        """Handed to W&B's own process."""
        for number, row in enumerate(rows, first):
            self._run.log({**row.figures, row.axis: row.at_axis}, step=number)

    def close(self, ending: Ending | None) -> None:
        """Wait until W&B's process has all."""
        self._run.finish(exit_code=0 if ending in (None, "Complete") else 1)
