"""MLflow as a tracker: a server or a database, by MLFLOW_TRACKING_URI."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from areal_view.tracking.rows import FigureRow
from areal_view.tracking.tracker import Ending, TrackedRun, package

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
