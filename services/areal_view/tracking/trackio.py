"""Trackio as a tracker: its database on this machine (TRACKIO_DIR), a Space or a server by its own variables."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from areal.errors import InfraError

from areal_view.tracking.rows import FigureRow
from areal_view.tracking.tracker import Ending, TrackedRun, package

_REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
_PATIENCE_S, _LOOK_S = 30.0, 0.1


class Trackio:
    """Runs are resumed by their name, so the name is the run's uid. Its own errors are warnings: rows are counted."""

    sure = True

    def __init__(self, tracked: TrackedRun) -> None:
        self._tracked = tracked
        self._run: Any = None
        self._local = not any(os.environ.get(name) for name in _REMOTE)

    @property
    def place(self) -> str:
        """How to look at it."""
        return f"`trackio show --project {self._tracked.project}` shows it"

    def begin(self, known: int) -> int:
        """The database on this machine tells what it has."""
        trackio, tracked = package("trackio"), self._tracked
        with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing):
            self._run = trackio.init(
                tracked.project, tracked.uid, config=dict(tracked.config), resume="allow", embed=False,
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip
        return self._count() if self._local else known

    def send(self, rows: Sequence[FigureRow], first: int) -> None:
        """Returns when the database on this machine has them; what goes elsewhere is Trackio's to deliver."""
        for row in rows:
            self._run.log(dict(row.figures), step=row.at_axis)
        until = time.monotonic() + _PATIENCE_S
        while self._local and self._count() < first + len(rows):
            if time.monotonic() > until:
                raise InfraError(f"of {first + len(rows)} rows {self._count()} are there", fix="see its warnings above")
            time.sleep(_LOOK_S)

    def close(self, ending: Ending | None) -> None:
        """Trackio knows no endings."""
        with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing):
            self._run.finish()

    def _count(self) -> int:
        return int(package("trackio").SQLiteStorage.get_log_count(self._tracked.project, run_id=self._run.id))
