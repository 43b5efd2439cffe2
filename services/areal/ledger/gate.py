"""Admission gate and deadline order: which prompt groups may start, and which make the next batch.

Owns the rules that keep every trained token within `max_staleness` versions and generation `ahead` batches ahead of
training, with nothing thrown away. Pure: it is told what has happened. It never talks to Redis or to servers.

A group is due at the last step that may train it: the oldest version that may make one of its tokens, plus its hard
bound. All of it keeps Hall's condition for unit jobs with deadlines, a batch being B places: for every step d from the
next one on, at most B·(d − next + 1) groups without a batch are due by d. `grant` lets in only what keeps it; `choose`
waits only where leaving out a group that isn't complete would break it.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """What the gate knows. All counts are prompt groups."""

    next_step: int  # the step whose batch is chosen next
    waiting: int  # admitted, in no batch, without a tombstone
    leased: int  # being generated now; complete groups don't count
    newest_version: int  # newest policy version on a server that may be routed to; −1 when there is none


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What the job asks for. The last three may change while it runs."""

    batch_groups: int  # B, groups a step
    ahead: int  # batches that may be admitted beyond the newest version
    max_steps: int
    max_concurrent: int  # groups


def room(window: Window, policy: GatePolicy) -> int:
    """Number of groups that may be admitted now (never negative): AReaL's gate (arXiv 2505.24298, eq. 3)."""
    last_step = min(window.newest_version + policy.ahead + 1, policy.max_steps)
    by_lead = (last_step - window.next_step) * policy.batch_groups - window.waiting
    return max(0, min(by_lead, policy.max_concurrent - window.leased))


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A granted group that is in no batch and has no tombstone."""

    index: int
    due: int  # the last step that may train it
    complete: bool


def in_time(due: Mapping[int, int], next_step: int, batch_groups: int) -> bool:
    """Hall's condition. `due` counts the groups without a batch by the step that they are due at."""
    total = 0
    for step in sorted(due):
        total += due[step]
        if total > batch_groups * (step - next_step + 1):
            return False
    return True


def grant(
    due: Mapping[int, int], next_step: int, batch_groups: int, bound: int, versions: range, earliest: int = 0
) -> int | None:
    """The floor under which one more group can still be trained in time, the lowest of `versions`, or None.

    `due` counts the other groups without a batch, for which `in_time` holds; `bound` is the group's own. A group in
    admission order has an `earliest` step: the one that its place in the order leads to.
    """
    for floor in range(max(versions.start, next_step - bound, earliest - bound), versions.stop):
        mine = floor + bound
        later = {mine, *(step for step in due if step > mine)}  # what is due before has its places as it had
        due_by = {step: sum(count for at, count in due.items() if at <= step) for step in later}
        if all(count + 1 <= batch_groups * (step - next_step + 1) for step, count in due_by.items()):
            return floor
    return None


def choose(
    groups: Collection[WaitingGroup], next_step: int, batch_groups: int, *, by_index: bool = False
) -> tuple[int, ...] | None:
    """The groups that `next_step` trains, in admission order; None while a promise or a batch waits for more.

    Waits only where a group that isn't complete could no longer be trained in time if it were left out. `by_index`
    takes the first groups in admission order, as long as the others are then in time too.
    """
    first = sorted(groups, key=lambda group: group.index)[:batch_groups] if by_index else None
    return choose_complete(
        Counter(group.due for group in groups),
        {group.index: group.due for group in groups if group.complete},
        next_step,
        batch_groups,
        None if first is None else {group.index: group.due for group in first},
    )


def choose_complete(
    due: Mapping[int, int],
    complete: Mapping[int, int],
    next_step: int,
    batch_groups: int,
    first: Mapping[int, int] | None = None,
) -> tuple[int, ...] | None:
    """As `choose`, without a look at each group.

    `due` counts all that wait by the step that they are due at; `complete` and `first`, the first in admission order,
    have the step of each.
    """
    if first is not None and in_time(Counter(due) - Counter(first.values()), next_step + 1, batch_groups):
        ready = len(first) == batch_groups and first.keys() <= complete.keys()
        return tuple(sorted(first)) if ready else None
    late = Counter(due) - Counter(complete.values())
    if len(complete) < batch_groups or not in_time(late, next_step + 1, batch_groups):
        return None
    urgent = sorted((step, group) for group, step in complete.items())
    return tuple(sorted(group for _, group in urgent[:batch_groups]))
