"""Interface of experiment trackers, and the import of their packages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from areal.errors import ConfigError

from areal_view.tracking.rows import FigureRow

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
        """Where a person finds what was sent."""

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
