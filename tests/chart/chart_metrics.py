"""Which metrics PromQL and the boards ask for, and which the code declares and serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import promql_parser
from areal.observe.catalog import CATALOG, Metric, Scope, Type
from chart.chart_rendering import CHART, ROOT

BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (CHART / "files" / "dashboards").glob("*.json")
}
GRAFANAS_OWN = {"$__rate_interval": "5m", "$namespace": "team-a", "$rljob": "digits"}


OF_PROCESSES = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
"""What prometheus-client serves of each process."""
OF_CARDS = {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"}
"""What NVIDIA's DCGM exporter serves of each GPU, with the pod that has it."""
OF_KUBELETS = {"kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes"}
OF_TARGETS = {"job", "instance", "pod", "container", "endpoint", "service"}
"""Labels that scraping adds."""
_SUFFIXES = re.compile(r"_(bucket|sum|count)$")


def parse(expression: str) -> Any:
    """The tree of an expression; raises ValueError where it isn't PromQL."""
    return promql_parser.parse(expression)


def selectors(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric that an expression reads, with the labels it matches on."""
    for node in _walk(parse(expression)):
        if isinstance(node, promql_parser.VectorSelector):
            yield str(node.name), {matcher.name for matcher in node.matchers.matchers}


def grouped(expression: str) -> set[str]:
    """Every label that an aggregation or a match names."""
    return {
        label.strip()
        for part in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expression)
        for label in part.split(",")
        if label.strip()
    }


def declared(name: str) -> Metric | None:
    """The catalogue's entry of a series' name."""
    if name in CATALOG:
        return CATALOG[name]
    base = CATALOG.get(_SUFFIXES.sub("", name))
    return base if base is not None and base.type is Type.HISTOGRAM else None


def labels_of(metric: Metric) -> set[str]:
    """The labels that a series of it can have."""
    return {*metric.scope.labels, *metric.labels, *OF_TARGETS, *(("le",) if metric.type is Type.HISTOGRAM else ())}


@cache
def emitted() -> set[str]:
    """Metrics that some code outside the catalogue names: what nobody names, nobody serves."""
    sources = [*(ROOT / "services").rglob("*.py"), *(ROOT / "trainer").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "catalog.py")
    return {name for name, metric in CATALOG.items() if _named(name, metric, text)}


def _named(name: str, metric: Metric, text: str) -> bool:
    short = name.removeprefix("areal_operator_" if metric.scope is Scope.OPERATOR else "areal_rljob_")
    return f'"{name}"' in text or (metric.scope is not Scope.ROLE and f'"{short}"' in text)


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        inner = getattr(node, name, None)
        if inner is not None and not isinstance(inner, (str, int, float)):
            yield from _walk(inner)
    for inner in getattr(node, "args", None) or ():
        yield from _walk(inner)


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a board, those in rows among them."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or ()
        else:
            yield panel


def promql(expression: str) -> str:
    """An expression with Grafana's variables filled in."""
    for name, value in GRAFANAS_OWN.items():
        expression = expression.replace(name, value)
    return expression


PANELS = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
