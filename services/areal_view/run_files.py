"""Runs from Python: `areal.open("runs/digits")` reads a run's files as tables, while it goes on and afterwards.

Owns no state but the place of the run. Importing this imports the standard library only; pandas is used where it is
installed.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    from areal.record.run_rows import HeldOut, Records, Step

    from areal_view.index.record_index import RecordIndex
    from areal_view.why.causes import Diagnosis


class Table(list[dict[str, Any]]):
    """Rows as dictionaries; `pandas.DataFrame(table)` takes it as it is."""

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order in which rows first have them."""
        return list(dict.fromkeys(name for row in self for name in row))

    def column(self, name: str) -> list[Any]:
        """One column; None where a row has no value."""
        return [row.get(name) for row in self]

    def frame(self) -> pandas.DataFrame:
        """The table as a data frame. Raises ConfigError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            from areal.errors import ConfigError

            raise ConfigError(
                "pandas is not installed", fix="pip install pandas, or use the rows as they are"
            ) from None
        return pandas.DataFrame(list(self))


class RunFiles:
    """A run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def steps(self) -> list[Step]:
        """The steps trained so far."""
        return self._records().steps

    def evaluations(self) -> list[HeldOut]:
        """The evaluations finished so far."""
        return self._records().held_out

    def metrics(self) -> Table:
        """A row a trained step: every figure of metrics.jsonl, seconds of a phase as `seconds.<phase>`.

        Of a step that was trained again after a restart the newest row counts.
        """
        from areal.record.run_rows import JsonLines, step_of

        rows = {row["step"]: row for row in JsonLines(self.directory / "metrics.jsonl").new() if step_of(row)}
        return Table(_flat(rows[step]) for step in sorted(rows))

    def samples(
        self,
        *,
        outcome: str | None = None,
        low: float | None = None,
        high: float | None = None,
        limit: int = 1_000,
    ) -> Table:
        """A row a recorded sample, the newest first: group, index, reward, outcome, text, token ids, log-probabilities.

        Args:
            outcome: only those that ended so: complete, truncated, deadline, rejected, exception, hang, infra.
            low: only those with this reward or more.
            high: only those with this reward or less.
            limit: at most so many.
        """
        from areal_view.index.export import lines

        with self.index() as index:
            rows = index.find(outcome=outcome, low=low, high=high, limit=limit)
            return Table(json.loads(line) for line in lines(index, rows))

    def config(self) -> dict[str, Any]:
        """Every field of the job by its dotted path, with every default in place."""
        from areal.plan.resolved import ResolvedJob
        from areal.spec.job_fields import spec_fields

        return spec_fields(ResolvedJob.load(self.directory).job)

    def summary(self) -> dict[str, Any] | None:
        """The run's summary.json; None while it goes on."""
        from areal.record import summary

        return summary.read(self.directory / "summary.json")

    def why(self) -> Diagnosis | None:
        """Cause for which the run waits, as `areal why` says it; None for a run that never said anything."""
        from areal.observe.live import read_live
        from areal.plan.layout import RunLayout

        from areal_view.why.causes import why

        live = read_live(RunLayout(self.directory).live)
        return why(live) if live is not None else None

    @contextmanager
    def index(self) -> Iterator[RecordIndex]:
        """The recording, indexed to its end; use as a context manager."""
        from areal.plan.layout import RunLayout

        from areal_view.index.record_index import RecordIndex

        layout = RunLayout(self.directory)
        with tempfile.TemporaryDirectory(prefix="areal-index-") as cache:
            index = RecordIndex(Path(cache) / "index.sqlite", [layout.trajectories, layout.recording])
            try:
                index.refresh()
                while index.behind:
                    time.sleep(0.02)
                yield index.refresh()
            finally:
                index.close()

    def _records(self) -> Records:
        from areal.record.run_rows import Records

        return Records(self.directory / "metrics.jsonl", self.directory / "evaluations.jsonl").refresh()


def open_run(directory: str | os.PathLike[str]) -> RunFiles:
    """A run that goes on or has ended, by its directory. Raises ConfigError when it is none."""
    from areal.errors import ConfigError

    root = Path(directory).absolute()
    if not (root / "resolved.json").is_file():
        raise ConfigError(f"{directory} is no run directory", fix="name one that `areal run` made, like runs/digits")
    return RunFiles(root)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        found.update(
            {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, Mapping) else {name: value}
        )
    return found
