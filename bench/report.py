"""Benchmark report: a table for people, JSON beside it for comparison.

A figure stands beside the limit measured in the same run; on a shared machine only their ratio means anything.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measured rate and the rate of its limit, in the same unit."""

    name: str
    unit: str
    value: float
    limit: float
    limit_name: str

    @property
    def ratio(self) -> float:
        return self.value / self.limit


def median_rates(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """The median of each measure over interleaved rounds, so that other load hits all of them alike."""
    seen: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for values, measure in zip(seen, measures, strict=True):
            values.append(measure())
    return [statistics.median(values) for values in seen]


def report(name: str, figures: Sequence[Figure], **more: object) -> None:
    """Print the table and write `bench/results/<name>.json`, with whatever else was measured."""
    print(f"\n{name}  (load {os.getloadavg()[0]:.1f})")
    for figure in figures:
        print(
            f"  {figure.name:<44} {figure.value:>12,.0f} {figure.unit:<10}"
            f" {figure.ratio:>7.3f} of {figure.limit_name} ({figure.limit:,.0f})"
        )
    rows = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
    write(name, {"load": os.getloadavg()[0], "figures": rows, **more})


def write(name: str, result: Mapping[str, object]) -> None:
    """Write `bench/results/<name>.json`; dataclasses become objects."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(result, indent=1, default=asdict)
    (RESULTS / f"{name}.json").write_text(text + "\n")
