"""The templates of the pages, for the server and for a static export alike."""

from __future__ import annotations

from pathlib import Path

import jinja2

from areal_view.pages import overview

HERE = Path(__file__).parent
STATIC = HERE / "static"


def environment() -> jinja2.Environment:
    """Templates with what all of them use. `linked` says whether other pages are there to link to."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = overview.number
    made.globals["spark"] = spark
    made.globals["linked"] = True
    return made


def spark(values: list[float], width: int = 120, height: int = 24) -> str:
    """Points of a small curve, for an SVG polyline."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = width / (len(values) - 1)
    return " ".join(
        f"{n * step:.1f},{height - 2 - (value - low) / span * (height - 4):.1f}" for n, value in enumerate(values)
    )
