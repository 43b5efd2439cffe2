"""The block of docs/recovery.md that says what faults cost, from the rows that `bench/chaos.py` wrote."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "recovery.md"
FIGURES = ROOT / "docs" / "recovery.json"
STAMPS = ("detected", "replaced", "useful", "old_step", "old_pace", "pause")
ENOUGH_FOR_P99 = 299  # below it the highest is no better than a guess at p99
NOBODY = "nobody"
BUSY = 6.0  # load average above which kills have a table of their own: a job alone has two to three
NAMES = {
    "redis": "Redis", "reward": "reward service", "agent": "generation agent (with its engine)",
    "run": "the run's disk", "journal": "controller's journal", "evidence": "trainer's evidence",
    "store": "Redis's append-only file",
}  # fmt: skip
ORDER = (
    "redis", "reward", "controller", "worker", "agent", "engine", "trainer", "trainer with a standby", "run",
    "journal", "evidence", "store",
)  # fmt: skip
KINDS = {  # kind → its title, and what was promised in seconds: detected, a new step
    "kill": ("SIGKILL", 3, 10),
    "stop1": ("SIGSTOP for 1 s", None, 10),
    "stop5": ("SIGSTOP for 5 s", 3, 10),
    "stop30": ("SIGSTOP for 30 s", 3, 10),
    "partition": ("Partition of 10 s", 5, 30),
    "disk": ("Full disk for 10 s", 10, 60),
    "torn": ("`areal run` killed, a last record torn, resumed", None, 60),
}
SCHEDULES = {"injected": "in a tenth of the steps", "poisson": "at random, every 300 s on average"}
_BLOCK = re.compile(r"(<!-- what a fault costs: make docs -->\n).*?(<!-- end of what a fault costs -->)", re.S)


def render(page: Path = PAGE, figures: Path = FIGURES) -> str:
    """The page with its block made anew."""
    text = page.read_text(encoding="utf-8")
    return _BLOCK.sub(lambda found: found[1] + block(json.loads(figures.read_text())) + found[2], text)


def add(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the figures of a measurement into those that are there, whose rows are gone: cells count together."""
    old, new = json.loads(FIGURES.read_text()), condensed(rows)
    cells = {_key(cell): cell for cell in old["cells"]}
    for cell in new["cells"]:
        cells[_key(cell)] = _together(cells[_key(cell)], cell) if _key(cell) in cells else cell
    sums = {name: old["audits"][name] + new["audits"][name] for name in old["audits"] if name != "oldest"}
    oldest = max(old["audits"]["oldest"], new["audits"]["oldest"])
    figures = {**old, "date": new["date"], "audits": {**sums, "oldest": oldest}, "ettr": old["ettr"] + new["ettr"]}
    known = [each["floors"] for each in (old, new) if each["floors"]]
    figures["floors"] = min(known, key=lambda floors: floors["load"][0], default={})  # of the quietest machine
    FIGURES.write_text(lines({**figures, "cells": [cells[key] for key in sorted(cells, key=_place)]}))
    PAGE.write_text(render(), encoding="utf-8")


def counted() -> Counter[tuple[str, str]]:
    """Number of faults that the page has, by kind and role; of kills those of a machine that does nothing else."""
    cells = json.loads(FIGURES.read_text())["cells"]
    return Counter({(cell["kind"], cell["role"]): cell["n"] for cell in cells if not cell["busy"]})


def _key(cell: Mapping[str, Any]) -> tuple[str, str, bool]:
    return cell["kind"], cell["role"], cell["busy"]


def _together(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """One cell of two measurements. Pace and multiples of imports are means by number of faults."""
    n = old["n"] + new["n"]
    cell = {**new, "n": n, "load": [min(old["load"][0], new["load"][0]), max(old["load"][1], new["load"][1])]}
    for name in ("step_s", "imports"):
        told = [(one[name], one["n"]) for one in (old, new) if one.get(name) is not None]
        if told:
            cell[name] = round(sum(value * count for value, count in told) / sum(count for _, count in told), 3)
    return {**cell, **{stamp: sorted([*old[stamp], *new[stamp]]) for stamp in STAMPS}}


def condensed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of all rows: a cell for each kind and role with the sorted seconds of each stamp."""
    faults = [row for row in rows if row["kind"] in KINDS]
    cells = []
    for kind, role, busy in sorted({_cell(row) for row in faults}, key=_place):
        mine = [row for row in faults if _cell(row) == (kind, role, busy)]
        cell: dict[str, Any] = {"kind": kind, "role": role, "busy": busy, "n": len(mine)}
        cell["load"] = [min(row["load"] for row in mine), max(row["load"] for row in mine)]
        cell["step_s"] = round(middle([row["step_s"] for row in mine]), 3)
        for stamp in STAMPS:
            cell[stamp] = sorted(value for row in mine if (value := _since(row, stamp)) is not None)
        if kind == "kill":
            cell["imports"] = _times_imports(mine, [row for row in rows if row["kind"] == "floors"])
        cells.append(cell)
    return {
        "date": max((str(row["date"])[:10] for row in faults), default=""),
        "audits": _audits([row for row in rows if row["kind"] == "job"]),
        "floors": _floors([row for row in rows if row["kind"] == "floors"]),
        "cells": cells,
        "ettr": [row for row in rows if row["kind"] == "ettr"],
    }


def _times_imports(faults: Iterable[Mapping[str, Any]], floors: Sequence[Mapping[str, Any]]) -> float | None:
    """Median of how many times a role's imports alone the new process took, by those at the load that was nearest."""
    found = []
    for row in faults:
        near = min(floors, key=lambda one: abs(one["load"] - row["load"]), default=None)
        if near is not None and row["replaced"] is not None and row["role"] in near["seconds"]:
            found.append(row["replaced"] / near["seconds"][row["role"]])
    return round(middle(found), 2) if found else None


def _audits(jobs: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Sums of what the audits found, and the age of the oldest token."""
    summed = {name: sum(row[name] for row in jobs) for name in ("faults", "trained", "lost", "duplicated", "healed")}
    problems = sum(len(row["problems"]) for row in jobs)
    return {
        "jobs": len(jobs),
        **summed,
        "problems": problems,
        "oldest": max((row["oldest"] for row in jobs), default=0),
    }


def _cell(row: Mapping[str, Any]) -> tuple[str, str, bool]:
    return row["kind"], row["role"], row["kind"] == "kill" and row["load"] > BUSY


def _place(cell: tuple[str, str, bool]) -> tuple[int, bool, int]:
    kind, role, busy = cell
    return list(KINDS).index(kind), busy, ORDER.index(role) if role in ORDER else -1


def _since(row: Mapping[str, Any], stamp: str) -> float | None:
    """Seconds from the fault; of one that is taken out again, work and steps from its end."""
    value = row.get(stamp)
    if value is None or row["lasted"] is None or stamp in ("pause", "replaced"):
        return None if value is None else float(value)
    if stamp == "detected":  # what is said when it is over tells of its end
        return float(value) if value <= row["lasted"] else None
    return round(float(value) - row["lasted"], 3)


def lines(figures: Mapping[str, Any]) -> str:
    """JSON with a line for each cell."""
    cells = ",\n  ".join(json.dumps(cell) for cell in figures["cells"])
    rest = {name: value for name, value in figures.items() if name != "cells"}
    return json.dumps(rest)[:-1] + ',\n "cells": [\n  ' + cells + "\n]}\n"


def middle(values: Sequence[float]) -> float:
    """The median: of an even number, the mean of two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the median by order statistics; None of fewer than six values, where there is none."""
    n, ordered = len(values), sorted(values)
    below, rank = 0.0, 0
    while rank < n // 2 and (below := below + math.comb(n, rank) / 2**n) <= 0.025:
        rank += 1
    return (ordered[rank - 1], ordered[n - rank]) if rank else None


def block(figures: Mapping[str, Any]) -> str:
    """All tables, with what they were measured on."""
    cells, audits = figures["cells"], figures["audits"]
    found = (
        f"{audits['lost']} lost, {audits['duplicated']} duplicated, {audits['problems']} problems of another kind "
        f"(such as a token older than its bound), {audits['healed']} tombstones for infra, deadline or poison"
    )
    said = [
        f"Measured on {figures['date']}: {audits['faults']} faults and moments without one in {audits['jobs']} jobs, "
        f"{audits['trained']:,} groups trained. `areal audit` of all jobs: **{found}**.",
        "",
        *_least(figures["floors"]),
    ]
    for kind, (title, detected_s, step_s) in KINDS.items():
        for busy in (False, True):
            mine = [cell for cell in cells if (cell["kind"], cell["busy"]) == (kind, busy)]
            if not mine:
                continue
            said += ["", f"**{title}.** {_measured(mine)}", "", *_table(kind, mine, detected_s, step_s)]
    return "\n".join([*said, "", *_ettr(figures["ettr"])]).rstrip() + "\n"


def _floors(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over all measurements of what a process needs at least; `load` from the lowest to the highest."""
    if not rows:
        return {}
    times = {name: round(middle([row["seconds"][name] for row in rows]), 3) for name in rows[0]["seconds"]}
    return {"n": len(rows), "load": [min(row["load"] for row in rows), max(row["load"] for row in rows)], **times}


def _least(floors: Mapping[str, Any]) -> list[str]:
    if not floors:
        return []
    times = sorted((value, name) for name, value in floors.items() if name not in ("n", "load", "python"))
    told = ", ".join(f"{name} {value:.1f} s" for value, name in times)
    low, high = floors["load"]
    return [
        f"What a start needs at least (load {low:.1f} to {high:.1f}): `python -c pass` {floors['python']:.2f} s, "
        f"a role's imports alone: {told}."
    ]


def _measured(cells: Iterable[Mapping[str, Any]]) -> str:
    cells = list(cells)
    low, high = min(cell["load"][0] for cell in cells), max(cell["load"][1] for cell in cells)
    return (
        f"Load average {low:.1f} to {high:.1f} on two cores, {middle([cell['step_s'] for cell in cells]):.2f} s a step."
    )


def _table(kind: str, cells: Sequence[Mapping[str, Any]], detected_s: float | None, step_s: float | None) -> list[str]:
    ended = kind not in ("kill", "torn")
    who = {"kill": "killed", "partition": "cut off", "torn": "torn", "disk": "full"}.get(kind, "stopped")
    heads = [who, "n", "detected", "accepted", "works", "new step", "old pace", "longest pause"]
    if detected_s is not None:
        heads.append(f"detected < {detected_s} s")
    heads.append(f"new step < {step_s} s")
    if kind == "kill":
        heads.append("accepted ÷ imports")
    if ended:
        heads[4:7] = ["works, after its end", "new step, after its end", "old pace, after its end"]
    rows = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for cell in cells:
        shown = [_seconds(cell, stamp, stamp in ("detected", "old_step")) for stamp in STAMPS]
        quiet = cell["role"] == NOBODY
        if detected_s is not None:
            shown.append("" if quiet else _within(cell, "detected", detected_s))
        shown.append(_within(cell, "old_step", step_s or 0))
        if kind == "kill":
            shown.append("" if cell["imports"] is None else f"{cell['imports']:.1f}")
        name = "nobody (jitter)" if quiet else NAMES.get(cell["role"], cell["role"])
        rows.append(f"| {name} | {cell['n']} | " + " | ".join(shown) + " |")
    return rows


def _seconds(cell: Mapping[str, Any], stamp: str, wide: bool) -> str:
    """`p50 (95 % interval) / worst`, and how often it was not seen."""
    values = cell[stamp]
    if not values:
        return "–"
    missed = cell["n"] - len(values)
    if cell["n"] == 1:
        return f"{values[0]:.1f}"
    found = interval(values) if wide else None
    between = f" ({found[0]:.1f}–{found[1]:.1f})" if found else ""
    p99 = f" / {sorted(values)[math.ceil(0.99 * len(values)) - 1]:.1f}" if len(values) >= ENOUGH_FOR_P99 else ""
    return f"{middle(values):.1f}{between}{p99} / {max(values):.1f}" + (f", {missed} not seen" if missed else "")


def _within(cell: Mapping[str, Any], stamp: str, bound_s: float) -> str:
    return f"{sum(value < bound_s for value in cell[stamp])} of {cell['n']}"


def _ettr(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    told = ["**Effective training time** of a job in which one role after another is killed, drawn by seed.", ""]
    told += ["| kills | n | length | steps kept | at the quiet pace | by the steps' own seconds | load |"]
    told += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        told.append(
            f"| {SCHEDULES[row['schedule']]} | {row['faults']} | {row['wall_s'] / 60:.0f} min | {row['steps']} "
            f"| {row['ettr']:.2f} | {row['ettr_own']:.2f} | {row['load']} |"
        )
    return told
