"""Experiment trackers behind one interface: Weights & Biases, MLflow, Trackio, and the import of their packages.

W&B is an online server or files of its offline mode; MLflow a server or a database, by MLFLOW_TRACKING_URI; Trackio its
database on this machine (TRACKIO_DIR), a Space or a server by its own variables.
"""

import importlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from areal.errors import ConfigError, InfraError
from areal.record.run_rows import JsonLines, evaluation_figures, step_figures

# ---- Rows of metrics.jsonl and evaluations.jsonl as named figures, in one order that every reading finds again


STEP, VERSION = "trainer/step", "evaluation/version"


@dataclass(frozen=True)
class FigureRow:
    """What one trained step or one evaluation measured."""

    axis: str  # STEP or VERSION
    at_axis: int  # the step, or the evaluated version
    time_s: float  # unix
    figures: Mapping[str, float]  # named as in TensorBoard: trainer/loss, seconds/wait, evaluation/mean


class FigureRows:
    """All rows of a run, a step and a version once: at the place where it was first met, with its newest figures."""

    def __init__(self, metrics: Path, evaluations: Path) -> None:
        self._metrics = JsonLines(metrics)
        self._evaluations = JsonLines(evaluations)
        self._rows: dict[tuple[str, int], FigureRow] = {}

    def refresh(self) -> Sequence[FigureRow]:
        """Read what is new; all rows by now."""
        told = [(STEP, line.get("step"), line, step_figures(line)) for line in self._metrics.new()]
        told += [
            (VERSION, line.get("version"), line, evaluation_figures(line))
            for line in self._evaluations.new()
            if line.get("mean") is not None
        ]
        new = [row for one in told if (row := _row(*one)) is not None]
        for row in sorted(new, key=lambda one: one.time_s):
            self._rows[row.axis, row.at_axis] = row  # a key that is there keeps its place
        return list(self._rows.values())


def _row(axis: str, at_axis: Any, line: Mapping[str, Any], figures: Mapping[str, float]) -> FigureRow | None:
    """A line of a file; None for one that is no step and no version."""
    time_s = line.get("at")
    if not isinstance(at_axis, int):
        return None
    return FigureRow(axis, at_axis, float(time_s) if isinstance(time_s, int | float) else 0.0, figures)


# ---- Experiment trackers behind one interface: Weights & Biases, MLflow, Trackio, and the import of their packages


Ending = Literal["Complete", "Failed", "Stopped"]


@dataclass(frozen=True)
class TrackedRun:
    """The run as a tracker is told of it."""

    uid: str  # the same after a restart of the run
    name: str
    project: str
    config: Mapping[str, Any]  # fields of the job by dotted path
    directory: Path  # where a tracker may keep files of its own


class Tracker(Protocol):
    """A tracker with one run. Its methods raise whatever its package raises."""

    sure: bool
    """Whether rows have arrived when `send` returns; else they have when `close` does."""

    @property
    def place(self) -> str:
        """Address at which a person finds the run."""

    def begin(self, known: int) -> int:
        """Open the run, made where it isn't there. How many rows it has: what it can tell itself, else `known`."""

    def send(self, rows: Sequence[FigureRow], first: int) -> None:
        """Log rows; `first` is the number of the first of them among all."""

    def close(self, ending: Ending | None) -> None:
        """Write out what is buffered. `ending` is how the run ended; None when it goes on, or was killed."""


def package(name: str) -> Any:
    """A tracker's package. Raises ConfigError where it can't be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name} can't be imported: {error}", fix=f"`pip install {name}`, in the environment of this command"
        ) from None


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


_TAG = "areal.uid"
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM = 1000, 100, 6000  # of a call; of a value
_STATUS = {"Complete": "FINISHED", "Failed": "FAILED", "Stopped": "KILLED"}


class Mlflow:
    """The run is found by a tag. A metric that is sent twice has the same step and time, and is kept once."""

    sure = True

    def __init__(self, tracked: TrackedRun) -> None:
        self._tracked = tracked
        self._client: Any = None
        self._entities: Any = None
        self._experiment = self._run = ""

    @property
    def place(self) -> str:
        """The store, the experiment and the run."""
        return f"{package('mlflow').get_tracking_uri()}, experiment {self._tracked.project}, run {self._run}"

    def begin(self, known: int) -> int:
        """Parameters that are there are left as they are: MLflow lets nobody change them."""
        mlflow, tracked = package("mlflow"), self._tracked
        self._entities = mlflow.entities
        self._client = client = mlflow.MlflowClient()
        found = client.get_experiment_by_name(tracked.project)
        self._experiment = found.experiment_id if found else client.create_experiment(tracked.project)
        runs = client.search_runs([self._experiment], f"tags.`{_TAG}` = '{tracked.uid}'")
        run = runs[0] if runs else client.create_run(self._experiment, tags={_TAG: tracked.uid}, run_name=tracked.name)
        self._run = run.info.run_id
        client.update_run(self._run, status="RUNNING")
        params = [
            self._entities.Param(_named(name), str(value)[:_LONGEST_PARAM])
            for name, value in tracked.config.items()
            if _named(name) not in run.data.params
        ]
        for start in range(0, len(params), _MOST_PARAMS):
            client.log_batch(self._run, params=params[start : start + _MOST_PARAMS])
        return known if runs else 0

    def send(self, rows: Sequence[FigureRow], first: int) -> None:
        """Returns when they are there."""
        metrics = [
            self._entities.Metric(_named(name), value, int(row.time_s * 1000), row.at_axis)
            for row in rows
            for name, value in row.figures.items()
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + _MOST_METRICS])

    def close(self, ending: Ending | None) -> None:
        """A run that goes on stays open."""
        if ending is not None:
            self._client.set_terminated(self._run, _STATUS[ending])


def _named(name: str) -> str:
    """The name in MLflow's letters; an @ becomes _at_."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", name.replace("@", "_at_"))


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
        """Command that shows it."""
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
