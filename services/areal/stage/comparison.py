"""Comparison of runs: the fields in which their jobs differ, and what came of each.

Owns reading several run directories into one table of values. A run that goes on is compared with what it has so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from areal.plan.layout import RunLayout
from areal.plan.resolved import ResolvedJob
from areal.stage import summary
from areal.stage.records import Records, best_of

_RECENT = 10  # steps that the last reward is a mean of

UNSET = "–"
"""Stands for a field that a job leaves to its default of another kind, or a figure that a run doesn't have."""


@dataclass(frozen=True)
class ComparedRun:
    """One run: its directory, every field of its spec by dotted path, its figures by name."""

    root: Path
    fields: Mapping[str, Any]
    figures: Mapping[str, Any]


def read_run(root: Path) -> ComparedRun:
    """A run directory as a column of the comparison. Raises ConfigError when its resolved job can't be read."""
    job = ResolvedJob.load(root)
    layout = RunLayout(root)  # a copied or moved run knows its old place
    records = Records(layout.metrics, layout.evaluations).refresh()
    steps, held_out = records.steps, records.held_out
    ended = summary.read(layout.summary) or {}
    rewards = [step.reward for step in steps[-_RECENT:] if step.reward is not None]
    seconds = [step.seconds for step in steps]
    figures = {
        "status": ended.get("status", "Running or killed"),
        "steps": records.trained,
        "held out, best": best_of(held_out).mean if held_out else None,
        "held out, last": held_out[-1].mean if held_out else None,
        f"reward, last {_RECENT} steps": fmean(rewards) if rewards else None,
        "seconds a step": fmean(seconds) if seconds else None,
        "share of waiting": sum(step.wait_seconds for step in steps) / sum(seconds) if sum(seconds) else None,
        "staleness, mean": fmean(step.staleness_mean for step in steps) if steps else None,
        "groups that taught nothing": fmean(step.same_share for step in steps) if steps else None,
        "restarts": sum((ended.get("restarts") or {}).values()) if ended else None,
    }
    spec = job.job.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    return ComparedRun(root, dict(_leaves(spec)), figures)


def differing_fields(runs: Sequence[ComparedRun]) -> dict[str, list[Any]]:
    """Dotted path of each field in which the jobs differ → its value in each run; `UNSET` where it has none."""
    names = sorted({name for run in runs for name in run.fields})
    rows = {name: [run.fields.get(name, UNSET) for run in runs] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
