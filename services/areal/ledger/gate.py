"""Admission gate: which prompt groups may start now.

Owns the rule that keeps every trained token within `max_staleness` versions. Pure: it is told what has happened and
answers how many groups may start. It never talks to Redis or to servers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """What the gate knows. All counts are prompt groups."""

    next_rank: int  # rank of the next group to admit: next_group − tombstones below it
    leased: int  # being generated now; complete groups don't count
    newest_version: int  # newest policy version on a server that may be routed to; −1 when there is none


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What the job asks for. The last three may change while it runs."""

    batch_groups: int  # B, groups a step
    max_staleness: int  # η, versions
    max_steps: int
    max_concurrent: int  # groups


def room(window: Window, policy: GatePolicy) -> int:
    """Number of groups that may be admitted now (never negative).

    Strict FIFO trains rank r at step ⌊r/B⌋, so this bounds how far generation runs ahead; `may_sample` bounds how old a
    server may be (AReaL, arXiv 2505.24298, eq. 3 bounds submissions only).
    """
    last_step = min(window.newest_version + policy.max_staleness + 1, policy.max_steps)
    by_staleness = last_step * policy.batch_groups - window.next_rank
    return max(0, min(by_staleness, policy.max_concurrent - window.leased))


def floor(rank: int, batch_groups: int, staleness_bound: int) -> int:
    """The oldest policy version that may still make a token of this group."""
    return rank // batch_groups - staleness_bound


def may_sample(floor: int, server_version: int) -> bool:
    """Whether a server's tokens would be young enough when the group is trained."""
    return server_version >= floor
