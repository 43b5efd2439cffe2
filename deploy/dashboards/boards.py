"""The boards by file name, as Grafana's JSON."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.dashboards.fleet import fleet
from deploy.dashboards.generation import generation
from deploy.dashboards.job import job
from deploy.dashboards.operator import operator
from deploy.dashboards.panels import EVENTS


def boards() -> dict[str, dict[str, Any]]:
    """Every board, ready to be written."""
    made = {"fleet": fleet(), "rljob": job(), "generation": generation(), "operator": operator()}
    found = {name: json.loads(JSONEncoder(sort_keys=True).encode(board.build())) for name, board in made.items()}
    for board in found.values():
        for event in board["annotations"].get("list", []):
            event["titleFormat"] = EVENTS[event["name"]]
    return found
