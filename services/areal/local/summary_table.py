"""The summary of a run as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from areal.local.wording import duration, rate


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
    if (loss := summary.get("loss")) is not None:
        return _supervised(grid, summary, loss, died, run_dir)
    grid.add_row("groups", f"{groups['trained']} trained, {groups['lost']} lost, {groups['duplicated']} duplicated")
    grid.add_row("tombstones", tombstones)
    if (episodes := summary.get("episodes")) is not None:
        ended = sum(episodes["ends"].values())
        grid.add_row(
            "infrastructure", f"{episodes['infraShare']:.2%} of {ended:,} episodes failed and were tried again"
        )
    if (share := summary.get("sameRewardShare")) is not None:
        grid.add_row("signal", f"{share:.0%} of groups earned the same, {summary['updates']} updates")
    grid.add_row("staleness", f"{age['mean']:.2f} mean, {age['max']} max")
    grid.add_row("tokens", f"generation {rate(speed['generation'])}, training {rate(speed['training'])}")
    grid.add_row("restarts", died)
    grid.add_row("files", Text(str(run_dir)))
    return Group(Text(), grid)


def _supervised(
    grid: Table, summary: Mapping[str, Any], loss: Mapping[str, float], died: str, run_dir: Path
) -> RenderableType:
    uses = summary.get("rowUses", {"fewest": 0, "most": 0})
    times = f"{uses['fewest']}" if uses["fewest"] == uses["most"] else f"{uses['fewest']} to {uses['most']}"
    grid.add_row("loss", f"{loss['first']:.4f} → {loss['last']:.4f}")
    grid.add_row("rows", f"{summary['groups']['trained']} trained, each of the dataset's {times} times")
    grid.add_row("tokens", f"training {rate(summary['tokensPerSecond']['training'])}")
    grid.add_row("restarts", died)
    grid.add_row("files", Text(str(run_dir)))
    return Group(Text(), grid)
