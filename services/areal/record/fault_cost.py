"""Cost of an injected fault: the stamps of its recovery, and their middle and worst by role."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class FaultCost:
    """What a fault cost: seconds from the moment before it; None where nothing of it was seen."""

    role: str
    kind: str
    at: float  # unix seconds
    detected: float | None = None  # the run's picture shows it
    replaced: float | None = None  # a new process is ready, or the stopped one goes on
    new_step: float | None = None  # the first step after that which had not been trained before
    old_pace: float | None = None  # the first of four that together had the pace of before
    pause: float | None = None  # the longest time between two steps until then

    @property
    def recovered(self) -> bool:
        return self.new_step is not None


def summary(costs: Sequence[FaultCost]) -> list[dict[str, Any]]:
    """For each role its faults, and of each stamp the median and the worst; None where one was not seen."""
    rows = []
    for role, kind in sorted({(one.role, one.kind) for one in costs}):
        mine = [one for one in costs if (one.role, one.kind) == (role, kind)]
        row: dict[str, Any] = {"role": role, "kind": kind, "faults": len(mine)}
        for stamp in ("detected", "replaced", "new_step", "old_pace", "pause"):
            seen = [value for one in mine if (value := getattr(one, stamp)) is not None]
            row[stamp] = {"p50": round(median(seen), 2), "worst": max(seen), "seen": len(seen)} if seen else None
        rows.append(row)
    return rows
