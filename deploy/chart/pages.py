"""The pages that describe values: the whole reference, and the table in the chart's README. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import yaml

from deploy.chart.values import Value

BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"

_HEAD = """# Values of the chart

Everything that `helm install areal charts/areal --set …` or `-f values.yaml` can say. The schema refuses any other key.
This page is made from the comments of [values.yaml](../charts/areal/values.yaml): `make chart`. How to install:
[install.md](install.md).
"""


def reference(values: list[Value]) -> str:
    """docs/values.md."""
    parts = [_HEAD]
    for section, together in groupby(values, key=lambda value: value.section):
        parts.append(f"## {section}\n")
        for single, group in groupby(together, key=lambda value: not value.children):
            if single:
                parts.append(_table(_rows(group)))
                continue
            for value in group:
                parts += [f"### {value.name}\n", *([f"{value.text}\n"] if value.text else [])]
                parts.append(_table(_rows(value.children)))
    return "\n".join(parts)


def readme(old: str, values: list[Value]) -> str:
    """The chart's README with a fresh table between its two marks: the values that a first install looks at."""
    head, _, rest = old.partition(BEGIN)
    _, _, tail = rest.partition(END)
    leaves = [leaf for value in values for leaf in value.walk() if not leaf.children]
    return f"{head}{BEGIN}\n{_table(_rows(leaves, deep=False))}{END}{tail}"


def _rows(values: Iterable[Value], *, deep: bool = True) -> list[tuple[str, str, str]]:
    rows = []
    for value in values:
        if value.children and deep:
            if value.text:
                rows.append((f"`{value.name}`", "", value.text))
            rows += _rows(value.children)
        else:
            rows.append((f"`{value.name}`", _default(value.default), value.text))
    return rows


def _default(default: Any) -> str:
    if isinstance(default, (dict, list)):
        text = yaml.safe_dump(default, default_flow_style=True, sort_keys=False, width=10_000).strip()
        return f"`{text}`" if len(text) <= 60 else "see values.yaml"
    return f"`{json.dumps(default)}`"


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = [("value", "default", "meaning"), ("---", "---", "---"), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
