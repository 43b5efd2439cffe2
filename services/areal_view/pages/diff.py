"""Comparison of two runs: the fields in which their jobs differ, their figures, one curve over the other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from areal_view.pages.overview import RunLine, charts_of, curve, line_of
from areal_view.pages.runs import ShownRun

UNSET = "–"


@dataclass(frozen=True)
class DiffPage:
    """Two runs beside each other."""

    a: RunLine
    b: RunLine
    fields: Sequence[tuple[str, str, str]]  # dotted path, its value in each as JSON
    same: int  # fields that are equal
    charts: Sequence[tuple[str, str]]  # name and title


def diff_page(a: ShownRun, b: ShownRun) -> DiffPage:
    """Where two runs differ."""
    mine, other = dict(leaves(_spec(a))), dict(leaves(_spec(b)))
    names = sorted({*mine, *other})
    rows = [(name, _shown(mine, name), _shown(other, name)) for name in names]
    fields = [row for row in rows if row[1] != row[2]]
    return DiffPage(line_of(a), line_of(b), fields, len(rows) - len(fields), charts_of(a, b))


def both_curves(a: ShownRun, b: ShownRun, name: str) -> dict[str, Any] | None:
    """A chart with the first line of each run; None for a name that is no chart's."""
    mine, other = curve(a, name), curve(b, name)
    if mine is None or other is None:
        return None
    steps = sorted({*mine["steps"], *other["steps"]})
    lines = []
    for run, told in ((a, mine), (b, other)):
        by_step = dict(zip(told["steps"], told["lines"][0]["values"], strict=True))
        lines.append({"label": run.name, "values": [by_step.get(step) for step in steps]})
    return {"steps": steps, "lines": lines}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of nested mappings by its dotted path."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value


def _spec(run: ShownRun) -> Any:
    return run.resolved().get("job", {}).get("spec", {})


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return orjson.dumps(fields[name]).decode() if fields.get(name) is not None else UNSET
