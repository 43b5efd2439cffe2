"""Every metric that this project serves, declared once, in `catalog.json`: name, type, labels, help.

Dashboards and alerts are checked against this list, and a process can't serve a metric that is not in it.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Any


class Type(StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Whom a metric speaks of, and who serves it."""

    ROLE = "role"  # one process of a job, which serves it itself
    JOB = "job"  # a job as its resource describes it; served by the operator that leads
    OPERATOR = "operator"  # one operator process

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels that every metric of this scope has before its own."""
        return {Scope.ROLE: ("namespace", "rljob", "role"), Scope.JOB: ("namespace", "rljob"), Scope.OPERATOR: ()}[self]


@dataclass(frozen=True)
class Metric:
    """One metric. The labels of its scope are added to `labels`."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    scope: Scope = Scope.ROLE


_BUCKETS: dict[str, tuple[float, ...]] = {
    "": (),
    "seconds": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
    "short": (0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0),
    "steps": (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0),
}


def _metric(row: dict[str, Any]) -> Metric:
    labels, buckets, scope = tuple(row.get("labels", ())), _BUCKETS[row.get("buckets", "")], row.get("scope", "role")
    return Metric(row["name"], Type(row["type"]), row["help"], labels, buckets, Scope(scope))


_ROWS = json.loads(resources.files("areal.observe").joinpath("catalog.json").read_bytes())
CATALOG: dict[str, Metric] = {row["name"]: _metric(row) for row in _ROWS}
