"""Spans of the controller: a group from its first lease to its end, and how long it lay in the ledger."""

from __future__ import annotations

from areal.observe.traces import Traces
from areal.rollout.controller.tally import Life


def trace_life(traces: Traces, life: Life) -> None:
    """A group was taken by the trainer, or ended untrained. The root of its trace: other roles hang theirs below it."""
    if not traces.wants(life.group):
        return
    root = traces.group(life.group)
    began = traces.wall(life.leased_at or life.closed_at)
    closed, ended = traces.wall(life.closed_at), traces.wall(life.ended_at)
    traces.emit(
        "group",
        began,
        ended,
        own=root,
        attributes={
            "group": life.group,
            "attempts": life.attempts,
            "outcome": life.reason or "taken",
            **({"step": life.step} if life.step >= 0 else {}),
        },
    )
    if life.leased_at:
        traces.emit("lease", began, closed, parent=root)
    if not life.reason:
        traces.emit("ledger", closed, ended, parent=root)
