"""`summary.json`: what a run came to, for scripts, and the same as a table for people.

Groups come from the audit (evidence and journal), held-out accuracy from the finished evaluations, the rest from the
trainer's steps and the supervisor. A resumed run adds to the wall time and restarts of the summary that it finds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from areal.ledger.audit import AuditReport
from areal.local.records import Records
from areal.local.view import duration, rate


@dataclass(frozen=True)
class Ending:
    """What the supervisor knows at the end."""

    status: str  # Complete | Failed | Stopped
    wall_s: float
    restarts: Mapping[str, int]
    generation_tps: float  # tokens per second
    reason: str = ""


def make(
    ending: Ending, records: Records, audit: AuditReport, earlier: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The summary. `earlier` is the one of the run that this one resumed."""
    earlier = earlier or {}
    steps, held_out = records.steps, records.held_out
    wall = ending.wall_s + float(earlier.get("wallSeconds", 0.0))
    restarts = {name: int(count) for name, count in (earlier.get("restarts") or {}).items()}
    for name, count in ending.restarts.items():
        restarts[name] = restarts.get(name, 0) + count
    training_s = sum(step.seconds - step.wait_seconds for step in steps)
    trained_tokens = sum(step.tokens for step in steps)
    ages = [step.staleness_mean for step in steps]
    summary: dict[str, Any] = {
        "status": ending.status,
        "steps": records.trained,
        "wallSeconds": round(wall, 1),
        "heldOut": {
            "first": held_out[0].mean if held_out else None,
            "best": max(one.mean for one in held_out) if held_out else None,
            "last": held_out[-1].mean if held_out else None,
        },
        "groups": {
            "trained": audit.trained,
            "tombstoned": dict(audit.tombstoned),
            "lost": len(audit.lost),
            "duplicated": len(audit.duplicated),
        },
        "restarts": restarts,
        "staleness": {
            "mean": round(sum(ages) / len(ages), 3) if ages else 0,
            "max": max((step.staleness_max for step in steps), default=0),
        },
        "tokensPerSecond": {
            "generation": round(ending.generation_tps, 1),
            "training": round(trained_tokens / training_s, 1) if training_s > 0 else 0,
        },
    }
    if ending.reason:
        summary["reason"] = ending.reason
    if audit.problems:
        summary["problems"] = list(audit.problems)
    return summary


def write(path: Path, summary: Mapping[str, Any]) -> None:
    """Replace the file as a whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(summary, indent=2) + "\n")
    os.replace(temporary, path)


def read(path: Path) -> dict[str, Any] | None:
    """A summary on disk; None when there is none that can be read."""
    try:
        loaded = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return loaded if isinstance(loaded, dict) else None


def table(summary: Mapping[str, Any], run_dir: Path) -> RenderableType:
    """The summary for people."""
    groups, out, speed, age = (summary[key] for key in ("groups", "heldOut", "tokensPerSecond", "staleness"))
    tombstones = ", ".join(f"{count} {reason}" for reason, count in groups["tombstoned"].items()) or "none"
    died = ", ".join(f"{name} {count}" for name, count in summary["restarts"].items() if count) or "none"
    accuracy = "—"
    if out["first"] is not None:
        accuracy = f"{out['first']:.3f} → {out['last']:.3f}, best {out['best']:.3f}"
    colour = {"Complete": "green", "Failed": "red"}.get(summary["status"], "yellow")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("status", Text(f"{summary['status']} after {summary['steps']} steps", style=f"bold {colour}"))
    grid.add_row("wall time", duration(summary["wallSeconds"]))
    grid.add_row("held-out", accuracy)
    grid.add_row("groups", f"{groups['trained']} trained, {groups['lost']} lost, {groups['duplicated']} duplicated")
    grid.add_row("tombstones", tombstones)
    grid.add_row("staleness", f"{age['mean']:.2f} mean, {age['max']} max")
    grid.add_row("tokens", f"generation {rate(speed['generation'])}, training {rate(speed['training'])}")
    grid.add_row("restarts", died)
    grid.add_row("files", Text(str(run_dir)))
    return Group(Text(), grid)
