"""Pictures of a graph: text for a terminal, SVG for a page. Text out of values; the same graph gives the same bytes."""

import html
from collections.abc import Sequence

from areal.dataflow.stages import Column, Graph, Stage

_BOX, _GAP, _LINE, _TOP, _LEFT = 250, 150, 15, 34, 14
_LANES = (("sample", "for each sample"), ("step", "once a step"))
_COLOURS = {
    "data": "#6b7a8f", "generate": "#2a9d6f", "score": "#d9822b", "infer": "#2f6fde", "compute": "#a24bbd",
    "update": "#c0392b", "publish": "#6b7a8f",
}  # fmt: skip


def text(graph: Graph) -> str:
    """A block for each stage, in the order in which they run: its model, and where each column comes from."""
    lines: list[str] = []
    for clock, lane in _LANES:
        stages = [stage for stage in graph.stages if stage.clock == clock]
        if not stages:
            continue
        lines.append(f"{lane}:")
        for stage in stages:
            model = f" · {stage.where}" if stage.where else ""
            lines.append(f"  {stage.name} ({stage.kind}{model})")
            for producer, consumer, columns in graph.edges():
                if consumer == stage:
                    lines.append(f"    ← {producer.name}: {_names(columns)}")
            lines += [f"    ⇠ {_writer(graph, it)}: {it.name} of an earlier step, at most η old" for it in stage.lagged]
            if stage.writes:
                lines.append(f"    → {', '.join(f'{column.name} [{column.axis}]' for column in stage.writes)}")
    return "\n".join(lines) + "\n"


def svg(graph: Graph, title: str) -> str:
    """Two lanes, stages from top to bottom in their order, an arrow for each pair of stages that share columns."""
    lanes = [lane for lane in _LANES if any(stage.clock == lane[0] for stage in graph.stages)]
    place: dict[str, tuple[int, int, int]] = {}  # of a stage: x, y, height
    y = _TOP + 30
    for stage in graph.stages:
        height = 30 + _LINE * max(1, len(_wrapped(stage)))
        x = _LEFT + [clock for clock, _ in lanes].index(stage.clock) * (_BOX + _GAP)
        place[stage.name] = (x, y, height)
        y += height + 22
    width = 2 * _LEFT + len(lanes) * _BOX + (len(lanes) - 1) * _GAP + 130
    parts = [f'<text x="{_LEFT}" y="20" class="t">{html.escape(title)}</text>']
    for at, (_, lane) in enumerate(lanes):
        parts.append(f'<text x="{_LEFT + at * (_BOX + _GAP)}" y="{_TOP + 18}" class="l">{lane}</text>')
    for number, (producer, consumer, columns) in enumerate(graph.edges()):
        parts.append(_arrow(place[producer.name], place[consumer.name], _names(columns), number))
    for stage in graph.stages:
        parts.append(_box(stage, place[stage.name]))
        parts += [_back(place[_writer(graph, column)], place[stage.name]) for column in stage.lagged]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" role="img">'
        "<style>text{font:12px system-ui,sans-serif;fill:#1b1f24}.t{font-weight:600;font-size:14px}.l{fill:#57606a}"
        ".c{fill:#57606a;font-size:11px}path{fill:none;stroke:#8b949e}.b{stroke:#2a9d6f;stroke-dasharray:5 4}</style>"
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<polygon points="0,0 8,4 0,8" fill="#8b949e"/></marker></defs>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _names(columns: Sequence[Column]) -> str:
    return ", ".join(column.name for column in columns)


def _writer(graph: Graph, column: Column) -> str:
    return next(stage.name for stage in graph.stages if column in stage.writes)


def _wrapped(stage: Stage) -> list[str]:
    """The columns that a stage writes, two a line."""
    names = [column.name for column in stage.writes]
    return [", ".join(names[at : at + 2]) for at in range(0, len(names), 2)]


def _box(stage: Stage, where: tuple[int, int, int]) -> str:
    x, y, height = where
    model = f" · {stage.where}" if stage.where else ""
    lines = "".join(
        f'<text x="{x + 12}" y="{y + 36 + _LINE * at}" class="c">{html.escape(line)}</text>'
        for at, line in enumerate(_wrapped(stage))
    )
    return (
        f'<rect x="{x}" y="{y}" width="{_BOX}" height="{height}" rx="5" fill="#f5f7fa" '
        f'stroke="{_COLOURS[stage.kind]}"/>'
        f'<text x="{x + 12}" y="{y + 19}">{html.escape(stage.name + model)}</text>{lines}'
    )


def _arrow(start: tuple[int, int, int], end: tuple[int, int, int], names: str, number: int) -> str:
    """From a stage to a later one: across the gap, or around the lane's right side."""
    title = f"<title>{html.escape(names)}</title>"
    shift = 4 * (number % 6)
    if start[0] != end[0]:
        x1, y1, x2, y2 = start[0] + _BOX, start[1] + start[2] // 2, end[0], end[1] + 8 + shift
        middle = (x1 + x2) // 2
        return f'<path d="M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}" marker-end="url(#a)">{title}</path>'
    right = start[0] + _BOX
    y1, y2 = start[1] + start[2] - 8, end[1] + 8 + shift
    bulge = right + min(120, 16 + (y2 - y1) // 4)
    return f'<path d="M{right},{y1} C{bulge},{y1} {bulge},{y2} {right},{y2}" marker-end="url(#a)">{title}</path>'


def _back(start: tuple[int, int, int], end: tuple[int, int, int]) -> str:
    """The edge back: weights of an earlier step."""
    x1, y1, x2, y2 = start[0], start[1] + start[2] // 2, end[0] + _BOX // 2, end[1] + end[2]
    return (
        f'<path d="M{x1},{y1} C{x2},{y1} {x2},{y1} {x2},{y2}" class="b" marker-end="url(#a)">'
        "<title>weights of an earlier step</title></path>"
    )
