"""`areal run` with a forwarder between its roles: `python bench/chaos_launch.py EDGES run JOB …`.

EDGES is a JSON file, role → server → the port on loopback that the role dials in place of the server's. Each such role
gets its own copy of the resolved job. The servers' own addresses are written beside it, for who forwards.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import areal.local.run
from areal.cli.main import app, guarded
from areal.plan import ResolvedJob, RoleRow, role_table


def between(edges: Path, resolved: ResolvedJob) -> list[RoleRow]:
    """The rows of a run whose roles dial the forwarder."""
    path = resolved.layout.resolved
    told = json.loads(path.read_text())
    edges.with_suffix(".targets").write_text(json.dumps(told["endpoints"]))
    rows = []
    for row in role_table(resolved):
        through = json.loads(edges.read_text()).get(row.name, {})
        if through:
            ends = {**told["endpoints"], **{server: f"127.0.0.1:{port}" for server, port in through.items()}}
            own = path.with_name(f"resolved-{row.name}.json")
            own.write_text(json.dumps({**told, "endpoints": ends}))
            row = replace(row, command=[str(own) if word == str(path) else word for word in row.command])
        rows.append(row)
    return rows


if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    areal.local.run.role_table = lambda resolved: between(file, resolved)  # type: ignore[attr-defined]
    sys.exit(guarded(app))
