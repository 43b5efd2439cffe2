"""Converts a row of a run into the child that the supervisor runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from areal.plan import RoleRow
from areal.processes.budget import BudgetPolicy
from areal.processes.core import LifePolicy, RestartBy
from areal.processes.family import Command
from areal.processes.probe import Probe, ProbeKind
from areal.processes.supervise import ChildSpec


def child_of(
    row: RoleRow, logs: Path, cwd: Path, *, env: Mapping[str, str] | None = None, mirror: int | None = None
) -> ChildSpec:
    """The child that `row` asks for, with its log in `logs`.

    `env` is its whole environment, ours with the row's on top unless given; `mirror` a descriptor that gets its output
    as well.
    """
    policy = LifePolicy(
        restart=RestartBy(row.restart),
        first_start=RestartBy.EPOCH if row.first_start == "epoch" else RestartBy.ITSELF,
        start_deadline_s=row.start_deadline_s,
        drain_s=row.drain_s,
        budget=BudgetPolicy(max_restarts=row.max_restarts),
    )
    return ChildSpec(
        command=Command(row.name, row.command, {**os.environ, **row.env} if env is None else env, cwd),
        log=logs / f"{row.name}.log",
        probe=_probe(row),
        policy=policy,
        mirror=mirror,
        listens={purpose: (row.bind, row.ports[purpose]) for purpose in row.held},
    )


def _probe(row: RoleRow) -> Probe:
    kind = ProbeKind(row.ready)
    if kind is ProbeKind.NONE:
        return Probe()
    port = row.ports.get("grpc") or row.ports.get("main") or next(iter(row.ports.values()))
    return Probe(kind, port, row.probe_host)
