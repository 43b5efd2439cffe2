"""Random schedules of deadline order: servers that lag, an adversary that ends the youngest group first.

`Law` holds the functions under test, so that a wrong one can be put in the place of each. A schedule knows nothing of
them but their answers: what it checks, it counts itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from areal.ledger import gate
from areal.ledger.gate import WaitingGroup


class Grant(Protocol):
    def __call__(
        self, due: Mapping[int, int], next_step: int, batch_groups: int, bound: int, versions: range, earliest: int = 0
    ) -> int | None: ...


class Choose(Protocol):
    def __call__(
        self, groups: Collection[WaitingGroup], next_step: int, batch_groups: int, *, by_index: bool = False
    ) -> tuple[int, ...] | None: ...


@dataclass(frozen=True)
class Law:
    """`same_floor`: what is made again keeps its floor."""

    grant: Grant = gate.grant
    choose: Choose = gate.choose
    same_floor: bool = True


@dataclass
class _Group:
    index: int
    floor: int
    bound: int
    oldest: int  # of its tokens, once it is complete
    complete: bool = False

    @property
    def due(self) -> int:
        return (self.oldest if self.complete else self.floor) + self.bound


@dataclass
class _Run:
    seed: int
    law: Law
    batch: int
    ahead: int
    bound: int
    servers: list[int]
    steps: int
    interval: int
    admission_order: bool
    unfair: float
    chosen: int = 0
    trained: int = 0
    saved: int = 0
    served: int = 0
    admitted: int = 0
    waiting: dict[int, _Group] = field(default_factory=dict)
    ungranted: set[int] = field(default_factory=set)
    batches: list[tuple[int, ...]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)

    def due(self, without: int = -1) -> Counter[int]:
        return Counter(group.due for index, group in self.waiting.items() if index != without)

    def earliest(self, index: int) -> int:
        if not self.admission_order:
            return 0
        before = sum(other < index for other in (*self.waiting, *self.ungranted))
        return self.chosen + before // self.batch

    def wrong(self) -> str:
        due = sorted(group.due for group in self.waiting.values())
        for place, step in enumerate(due):
            if step < self.chosen + place // self.batch:
                return f"group due at {step} has place {place} from step {self.chosen} on"
        return ""


def play(seed: int, law: Law | None = None) -> str:
    """One schedule: what went wrong, or ''."""
    r = random.Random(seed)
    ahead = r.choice((0, 0, 1, 1, 2, 4))
    admission_order = r.random() < 0.2
    run = _Run(
        seed,
        law or Law(),
        batch=r.choice((1, 2, 3, 8)),
        ahead=ahead,
        bound=ahead if admission_order else ahead + r.choice((0, 0, 1, 3)),
        servers=[0] * r.choice((1, 2, 4)),
        steps=r.randint(8, 25),
        interval=r.randint(1, ahead + 1),
        admission_order=admission_order,
        unfair=r.choice((0.0, 0.6, 1.0)),
    )
    acts = {act: r.random() + 0.05 for act in (_start, _end, _swap, _choose, _train)}
    acts |= {act: r.random() * r.choice((0.0, 0.1, 0.3)) for act in _FAULTS}
    idle, faults = 0, 60
    while run.trained < run.steps:
        act = r.choices(list(acts), list(acts.values()))[0]
        if act in _FAULTS:
            faults -= 1
            if faults < 0:
                continue
        try:
            moved = act(run, r)
        except _Broken as broken:
            return str(broken)
        if words := run.wrong():
            return words
        idle = 0 if moved and act in (_choose, _train) else idle + 1
        if idle > 3000:
            return f"stands still at step {run.trained}, {run.chosen} chosen, servers {run.servers}, {run.due()}"
    used = [index for batch in run.batches for index in batch]
    return "" if len(set(used)) == len(used) else "a group is in two batches"


class _Broken(Exception):
    pass


def _start(run: _Run, r: random.Random) -> bool:
    """The lowest group that nobody makes, else a new one."""
    newest, lowest = max(run.servers), min(run.servers)
    index = min(run.ungranted, default=run.admitted)
    alive = len(run.waiting) + len(run.ungranted)
    if index == run.admitted and alive >= run.batch * (min(newest + run.ahead + 1, run.steps) - run.chosen):
        return False
    versions = range(lowest, newest + 1)
    floor = run.law.grant(run.due(), run.chosen, run.batch, run.bound, versions, run.earliest(index))
    if floor is None:
        return False
    run.ungranted.discard(index)
    run.admitted = max(run.admitted, index + 1)
    run.waiting[index] = _Group(index, floor, run.bound, floor)
    return True


def _end(run: _Run, r: random.Random) -> bool:
    """A group becomes complete: the youngest, as an adversary would have it, or any."""
    able = [g for g in run.waiting.values() if not g.complete and max(run.servers) >= g.floor]
    if not able:
        return False
    group = max(able, key=lambda g: g.index) if r.random() < run.unfair else r.choice(able)
    group.oldest = r.choice([version for version in run.servers if version >= group.floor])
    group.complete = True
    return True


def _swap(run: _Run, r: random.Random) -> bool:
    at = r.randrange(len(run.servers))
    before, run.servers[at] = run.servers[at], r.randint(run.servers[at], max(run.servers[at], run.served))
    return run.servers[at] != before


def _choose(run: _Run, r: random.Random) -> bool:
    if run.chosen > run.trained + 1 or run.chosen >= run.steps:
        return False
    groups = [WaitingGroup(g.index, g.due, g.complete) for g in run.waiting.values()]
    if run.admission_order:
        groups += [WaitingGroup(index, 1 << 30, False) for index in run.ungranted]
    by_index = run.admission_order or run.chosen < run.bound
    picked = run.law.choose(groups, run.chosen, run.batch, by_index=by_index)
    if picked is None:
        return False
    for index in picked:
        group = run.waiting.pop(index)
        if not group.complete or group.due < run.chosen:
            raise _Broken(f"group {index}, due at {group.due}, complete {group.complete}, in step {run.chosen}")
    if len(picked) != run.batch or list(picked) != sorted(picked):
        raise _Broken(f"step {run.chosen} has {picked}")
    if run.admission_order and any(index < max(picked) for index in (*run.waiting, *run.ungranted)):
        raise _Broken(f"step {run.chosen} overtakes with {picked}")
    run.batches.append(picked)
    run.chosen += 1
    return True


def _train(run: _Run, r: random.Random) -> bool:
    if run.trained >= run.chosen:
        return False
    run.trained += 1
    if run.trained % run.interval == 0 or run.trained == run.steps:
        run.served = max(run.served, run.trained)
    if r.random() < 0.3:
        run.saved = run.trained
    return True


def _tombstone(run: _Run, r: random.Random) -> bool:
    if not run.waiting:
        return False
    index = r.choice(list(run.waiting))
    del run.waiting[index]
    run.ended.add(index)
    return False


def _lose(run: _Run, r: random.Random) -> bool:
    """A group's samples are gone: it is granted anew."""
    if not run.waiting:
        return False
    group = run.waiting[r.choice(list(run.waiting))]
    versions = range(min(run.servers), max(run.servers) + 1)
    floor = run.law.grant(run.due(group.index), run.chosen, run.batch, group.bound, versions, run.earliest(group.index))
    if not run.law.same_floor:
        floor = versions.start
    if floor is None:  # after a fall of the servers' versions: as it was
        floor = group.due - group.bound
    group.complete, group.floor = False, floor
    return False


def _restart(run: _Run, r: random.Random) -> bool:
    """A new controller doesn't know the deadline of a group of which nothing is left."""
    lost = [index for index, group in run.waiting.items() if not group.complete and r.random() < 0.3]
    for index in lost:
        del run.waiting[index]
    run.ungranted.update(lost)
    return False


def _fall_back(run: _Run, r: random.Random) -> bool:
    """The trainer goes back, maybe the servers with it; batches stay as they were chosen."""
    run.trained = run.saved
    if r.random() < 0.3:
        run.served = run.trained - run.trained % run.interval
        run.servers = [min(version, run.served) for version in run.servers]
    return False


def _hot(run: _Run, r: random.Random) -> bool:
    run.bound = max(run.ahead, min(run.bound + r.choice((-4, -1, 1, 4)), 8))
    return False


_FAULTS = (_tombstone, _lose, _restart, _fall_back, _hot)


# ---- wrong laws


def _no_wait(
    groups: Collection[WaitingGroup], next_step: int, batch_groups: int, *, by_index: bool = False
) -> tuple[int, ...] | None:
    return gate.choose([group for group in groups if group.complete], next_step, batch_groups, by_index=by_index)


def _late_wait(
    groups: Collection[WaitingGroup], next_step: int, batch_groups: int, *, by_index: bool = False
) -> tuple[int, ...] | None:
    later = [group if group.complete else replace(group, due=group.due + 1) for group in groups]
    return gate.choose(later, next_step, batch_groups)


def _first_index(
    groups: Collection[WaitingGroup], next_step: int, batch_groups: int, *, by_index: bool = False
) -> tuple[int, ...] | None:
    picked = gate.choose(groups, next_step, batch_groups, by_index=by_index)
    complete = sorted(group.index for group in groups if group.complete)
    return picked and tuple(complete[:batch_groups])


def _as_they_come(
    groups: Collection[WaitingGroup], next_step: int, batch_groups: int, *, by_index: bool = False
) -> tuple[int, ...] | None:
    picked = gate.choose(groups, next_step, batch_groups, by_index=by_index)
    complete = [group.index for group in groups if group.complete]
    return picked and tuple(sorted(complete[:batch_groups]))


def _newest_first(
    groups: Collection[WaitingGroup], next_step: int, batch_groups: int, *, by_index: bool = False
) -> tuple[int, ...] | None:
    picked = gate.choose(groups, next_step, batch_groups, by_index=by_index)
    complete = sorted((group.due, group.index) for group in groups if group.complete)
    return picked and tuple(sorted(index for _, index in complete[-batch_groups:]))


def _total_only(
    due: Mapping[int, int], next_step: int, batch_groups: int, bound: int, versions: range, earliest: int = 0
) -> int | None:
    floor = versions.stop - 1
    last = max((*due, floor + bound))
    return floor if sum(due.values()) + 1 <= batch_groups * (last - next_step + 1) else None


def _own_due_only(
    due: Mapping[int, int], next_step: int, batch_groups: int, bound: int, versions: range, earliest: int = 0
) -> int | None:
    for floor in range(max(versions.start, next_step - bound, earliest - bound), versions.stop):
        before = sum(count for step, count in due.items() if step <= floor + bound)
        if before + 1 <= batch_groups * (floor + bound - next_step + 1):
            return floor
    return None


def _one_too_many(
    due: Mapping[int, int], next_step: int, batch_groups: int, bound: int, versions: range, earliest: int = 0
) -> int | None:
    return gate.grant(due, next_step - 1, batch_groups, bound, versions, earliest)


def _no_place(
    due: Mapping[int, int], next_step: int, batch_groups: int, bound: int, versions: range, earliest: int = 0
) -> int | None:
    return gate.grant(due, next_step, batch_groups, bound, versions)


MUTANTS = {
    "does not wait": Law(choose=_no_wait),
    "waits one batch too late": Law(choose=_late_wait),
    "picks by index": Law(choose=_first_index),
    "picks as they come": Law(choose=_as_they_come),
    "picks the least urgent": Law(choose=_newest_first),
    "tests only the total": Law(grant=_total_only),
    "tests its own step only": Law(grant=_own_due_only),
    "one step too many": Law(grant=_one_too_many),
    "no place in admission order": Law(grant=_no_place),
    "makes lost samples on any server": Law(same_floor=False),
}
