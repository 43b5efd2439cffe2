"""The templates of the pages, for the server and for a static export alike."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

import jinja2

from areal_view.pages import overview
from areal_view.pages.curves import figure_of

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
    made.filters["figure"] = figure_of
    made.filters["age"] = age
    made.filters["day"] = lambda at: f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
    made.globals["spark"] = spark
    made.globals["link"] = link
    made.globals["linked"] = True
    return made


def age(seconds: float) -> str:
    """As kubectl writes an age: `45s`, `12m`, `7h`, `3d`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"


def link(query: Mapping[str, str], changes: Mapping[str, str]) -> str:
    """The query part of an address, with some parameters changed; those that are empty are left out."""
    return "?" + urlencode({name: value for name, value in {**query, **changes}.items() if value})


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
