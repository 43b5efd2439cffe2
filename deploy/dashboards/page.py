"""docs/grafana.md: what the boards show, panel by panel. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_HEAD = """# Grafana

The chart brings Grafana dashboards (`monitoring.dashboards.enabled`), made from `deploy/dashboards` by `make chart`,
as this page is. How to install them, and how Prometheus finds the jobs: [install.md](install.md#monitoring). What is
wrong when an alert fires: [alerts.md](alerts.md).

Every number in a row of `metrics.jsonl` is a series `areal_trainer_row{figure="NAME"}` of the last step; the seconds
by phase are `areal_trainer_step_duration_seconds{phase="NAME"}`, and what the job's own code names is
`areal_trainer_figure{figure="NAME"}` ([figures.md](figures.md)). What the engine says of its queue, cache and pace is
`areal_generation_engine{figure="NAME"}`. Gauges are those of the last step: of steps shorter than the scrape's
interval a graph shows a sample.

Graphs are marked where a trainer's gang began another epoch, where a pod was lost (with its node and whose fault it
was), and, switched on above the board, at each policy version. With `jobsPage.jobAddress` the boards of a job link to
the page of the job that is chosen above them, and each job of the fleet to its own.

Panels of GPUs ask for NVIDIA's DCGM exporter; those of pods and jobs for the operator; all others for the role that
they are about.
"""


def page(boards: dict[str, dict[str, Any]]) -> str:
    """The page of all boards."""
    parts = [_HEAD]
    for board in boards.values():
        parts += [f"## {board['title'].removeprefix('AReaL / ')}\n", f"{board['description']}\n", _table(board)]
    return "\n".join(parts)


def _table(board: dict[str, Any]) -> str:
    lines = ["| panel | shows | series |", "|---|---|---|"]
    for panel in _panels(board):
        series = sorted({name for target in panel["targets"] for name in _series(target["expr"])})
        shows = panel["description"].replace("|", "\\|")
        lines.append(f"| {panel['title']} | {shows} | {', '.join(f'`{name}`' for name in series)} |")
    return "\n".join(lines) + "\n"


def _panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def _series(expression: str) -> Iterator[str]:
    """Metrics of an expression, with the figure where it chooses one."""
    for name, matchers in re.findall(r"\b((?:areal|process|DCGM)_\w+)(\{[^}]*\})?", expression):
        figure = re.search(r'figure="(\w+)"', matchers)
        yield f'{name}{{figure="{figure[1]}"}}' if figure else re.sub("_(bucket|sum|count)$", "", name)
