"""Rows of metrics.jsonl and evaluations.jsonl as named figures, in one order that every reading finds again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.record.run_rows import JsonLines, evaluation_figures, step_figures

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
        new = [row for line in self._metrics.new() if (row := trained(line)) is not None]
        new += [row for line in self._evaluations.new() if (row := evaluated(line)) is not None]
        for row in sorted(new, key=lambda one: one.time_s):
            self._rows[row.axis, row.at_axis] = row  # a key that is there keeps its place
        return list(self._rows.values())


def trained(line: Mapping[str, Any]) -> FigureRow | None:
    """A line of metrics.jsonl; None for one that is no step."""
    return _row(STEP, line.get("step"), line, step_figures(line))


def evaluated(line: Mapping[str, Any]) -> FigureRow | None:
    """A line of evaluations.jsonl; None for one that measured nothing."""
    if line.get("mean") is None:
        return None
    return _row(VERSION, line.get("version"), line, evaluation_figures(line))


def _row(axis: str, at_axis: Any, line: Mapping[str, Any], figures: Mapping[str, float]) -> FigureRow | None:
    time_s = line.get("at")
    if not isinstance(at_axis, int):
        return None
    return FigureRow(axis, at_axis, float(time_s) if isinstance(time_s, int | float) else 0.0, figures)
