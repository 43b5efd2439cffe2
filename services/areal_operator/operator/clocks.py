"""Deadline clocks of a job that should run: start, queue, stall.

Owns which clock runs when. The startup clock runs only while every pod is bound to a machine that answers; the queue
clock runs otherwise. Both start over at each start or resumption and stop to matter at the first step. Pure; what was
waited is in the memory, so a successor continues to count.
"""

from __future__ import annotations

from dataclasses import replace

from areal_operator.operator.memory import Memory


def kept_waiting(memory: Memory, waits: bool, now: float) -> Memory:
    """The memory with the time that pods have waited for nodes."""
    if waits and memory.waiting_since is None:
        return replace(memory, waiting_since=float(int(now)))
    if not waits and memory.waiting_since is not None:
        whole = memory.waited_s + max(0.0, float(int(now)) - memory.waiting_since)
        return replace(memory, waited_s=whole, waiting_since=None)
    return memory


def waited_s(memory: Memory, now: float) -> float:
    """How long the pods have waited for nodes since the job's start, resumption or last step."""
    open_s = now - memory.waiting_since if memory.waiting_since is not None else 0.0
    return memory.waited_s + max(0.0, open_s)


def startup_s(memory: Memory, now: float) -> float:
    """How long all pods could run since the job's start or resumption."""
    started = memory.started_at if memory.started_at is not None else now
    return max(0.0, now - started - waited_s(memory, now))


def started_anew(memory: Memory, now: float) -> Memory:
    """The memory with the clocks of a job that starts or is resumed."""
    return replace(memory, started_at=float(int(now)), waited_s=0.0, waiting_since=None)
