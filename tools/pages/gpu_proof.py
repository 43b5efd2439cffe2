"""The block of docs/gpus.md that shows the newest proof on a card, or says that there is none."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gpus.md"
RESULTS = ROOT / "bench" / "results" / "gpu-proof"
_BLOCK = re.compile(r"(<!-- the newest proof: make docs -->\n).*?(<!-- end of the newest proof -->)", re.S)
NONE = "**Newest proof: none.** Nobody has run it on a card yet.\n"


def render(page: Path = PAGE, results: Path = RESULTS) -> str:
    """The page with its block made anew."""
    text = page.read_text(encoding="utf-8")
    return _BLOCK.sub(lambda found: found[1] + block(newest(results)) + found[2], text)


def newest(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Lines of the proof whose last line is the newest; none of a machine without a card."""
    files = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(results.glob("*.jsonl"))]
    proofs = [rows for rows in files if rows and all(row["card"] for row in rows)]
    return max(proofs, key=lambda rows: str(rows[-1]["date"]), default=[])


def block(rows: Sequence[dict[str, Any]]) -> str:
    """A sentence with the date, the card and the counts, and a line a claim."""
    if not rows:
        return NONE
    last, states = rows[-1], Counter(row["state"] for row in rows)
    counts = ", ".join(f"{states[state]} {state}" for state in ("proved", "failed", "not tried"))
    where = f"{last['card']}, driver {last['driver'] or 'unknown'}, torch {last['torch']}"
    lines = [f"**Newest proof: {last['date'][:10]}**, {where}: {counts}.", "", "| claim | | measured | bound |"]
    lines += ["| --- | --- | --- | --- |", *map(_line, rows)]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    number = "" if row["measured"] is None else f"{row['measured']:.4g} {row['unit']}"
    why = "; ".join(filter(None, (number, row["reason"]))).replace("|", "\\|")
    return f"| {row['claim']}: {row['says']} | {row['state']} | {why} | {row['bound']} |"
