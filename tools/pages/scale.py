"""The blocks of docs/scale.md: published figures beside the model's, curves to 1,024 GPUs, the control plane."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE, RESULT = ROOT / "docs" / "scale.md", ROOT / "docs" / "scale.json"
_BLOCK = re.compile(r"(<!-- (\w+): make docs -->\n).*?(<!-- end of \2 -->)", re.S)


def render(page: Path = PAGE, result: Path = RESULT) -> str:
    """The page with its blocks made anew from docs/scale.json."""
    found = json.loads(result.read_text(encoding="utf-8"))
    blocks = {
        "published": _published(found["published"]),
        "curves": _curves(found["curves"]),
        "control": _control(found["control_plane"]),
        "passes": _passes(found["passes"]),
    }
    text = page.read_text(encoding="utf-8")
    return _BLOCK.sub(lambda at: at[1] + "\n".join(blocks[at[2]]) + "\n" + at[3], text)


def _published(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| published | figure | model | off by | |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        why = f"no: {row['why']}" if row["why"] and abs(row["error"]) > 0.10 else "within a tenth"
        unit = row["unit"]
        yield f"| {row['what']} | {row['published']:.4g} {unit} | {row['model']:.4g} | {row['error']:+.0%} | {why} |"


def _curves(curves: list[dict[str, Any]]) -> Iterator[str]:
    sizes = [row["gpus"] for row in curves[0]["rows"]]
    yield "| GPUs | " + " | ".join(str(size) for size in sizes) + " |"
    yield "| --- |" + " --- |" * len(sizes)
    known: list[str] = []
    for curve in curves:
        rows = curve["rows"]
        first, turns = rows[0]["apart"], rows[0]["by_turns"]
        for name, base, key in (("apart", first, "apart"), ("by turns", turns, "by_turns")):
            cells = [
                f"{row[key]['step_s']:,.0f} s, {_times(row[key]['tokens_per_s'] / base['tokens_per_s'])}"
                for row in rows
            ]
            cells += [""] * (len(sizes) - len(cells))
            if (line := " | ".join(cells)) not in known:  # by turns nothing is ahead
                what = curve["name"].partition(", ahead")[0] if key == "by_turns" else curve["name"]
                yield f"| {what}: {name} | {line} |"
            known.append(line)
        splits = [f"{row['apart']['generation']} + {row['apart']['training']}" for row in rows]
        splits += [""] * (len(sizes) - len(splits))
        yield f"| {curve['name']}: best split | " + " | ".join(splits) + " |"


def _times(ratio: float) -> str:
    return f"× {ratio:.1f}" if ratio < 100 else f"× {ratio:.0f}"


def _control(found: dict[str, Any]) -> Iterator[str]:
    yield "| | |"
    yield "| --- | --- |"
    size = f"{found['servers']:,} / {found['groups']:,} / {found['batch']}"
    yield f"| servers / groups in flight / groups a batch | {size} |"
    yield f"| batches chosen and trained in {found['seconds']:.0f} s | {found['steps']} |"
    yield f"| CPU of the controller | {found['controller_cpu']:.0%} of one core |"
    yield f"| its memory | {found['controller_mb']:.0f} MB |"
    yield f"| its loop's lag, p99 | {found['lag_ms'][1]:.0f} ms; its own work in a row {found['own_ms'][1]:.0f} ms |"
    yield f"| lag of a process that does nothing, same run | {found['idle_lag_ms'][1]:.0f} ms |"
    half, most = found["beats_ms"]
    yield f"| age of a heartbeat at its arrival, median and p99 | {half:.1f} / {most:.0f} ms |"
    yield f"| load of the machine (two cores, all peers on it too) | {found['load']:.1f} |"


def _passes(found: dict[str, Any]) -> Iterator[str]:
    yield "| processor time, median / highest of 60 | a pass of leasing | a look at the clock |"
    yield "| --- | ---: | ---: |"
    for name, row in found.items():
        cells = (f"{row[key][0]:.1f} / {row[key][1]:.1f} ms" for key in ("pass_ms", "clock_ms"))
        yield f"| {name}, {row['groups']:,} groups in work | " + " | ".join(cells) + " |"
