"""Who runs next: shares among tenants, among the priority classes of a tenant, and deadlines within a class.

Pure: it is told the time and what things cost. Promises:

- Whenever something that has not expired waits, `pop` gives something (work-conserving); it never gives what expired.
- Tenants that wait get equal shares of slot seconds (by weight), by virtual time as in start-time fair queueing
  (Goyal, Vin, Cheng 1996). Starting costs what an entry is expected to take; finishing corrects that by what it took.
- Within `BURST` mean entries of equal shares, the tenant with the least work waiting goes first: a small job beside
  large ones waits hardly longer than it would alone, while in the long run all get their shares, and none starves.
- Within a tenant, classes share 8:4:1, so that none starves. Within a class the earliest deadline goes first; what has
  none, or a far one, counts as due `PATIENCE_S` after its arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from areal.reward.dispatch.values import Priority

T = TypeVar("T")

PATIENCE_S = 60.0  # orders what has no deadline
BURST = 32  # entries of mean cost that a tenant with little work may be ahead of who is furthest behind
CLASS_WEIGHTS: Mapping[Priority, float] = {Priority.TRAIN: 8.0, Priority.EVAL: 4.0, Priority.BATCH: 1.0}
_LEARNING = 0.2  # weight of the newest ratio of actual to declared cost
_LEAST_RATIO = 1e-4
_FIRST_MEAN_S = 1.0  # of an entry, until some have finished
_SWEEP_ABOVE = 64  # tenants known; those that owe nothing are then forgotten


@dataclass(eq=False)
class Entry(Generic[T]):
    """Something that waits for a slot, or holds one."""

    item: T
    tenant: str
    priority: Priority
    deadline: float | None  # on the clock of `now`; it never starts after it
    cost_s: float  # declared: an upper bound of the slot seconds that it needs
    size_bytes: int = 0
    wanted_by: float | None = None  # its place among others; the deadline unless somebody wants it earlier
    arrived: float = 0.0
    number: int = 0
    charged_s: float = 0.0
    waiting: bool = False

    def expired(self, now: float) -> bool:
        return self.deadline is not None and self.deadline <= now

    @property
    def due(self) -> float:
        """Its place in its class."""
        wanted = [by for by in (self.deadline, self.wanted_by) if by is not None]
        return min([*wanted, self.arrived + PATIENCE_S])


@dataclass(eq=False)
class _Class(Generic[T]):
    heap: list[tuple[float, int, Entry[T]]] = field(default_factory=list)
    served: float = 0.0  # virtual: slot seconds by weight
    waiting: int = 0

    def head(self) -> Entry[T] | None:
        """The first that still waits; forgets those in front of it that were removed."""
        while self.heap:
            _, number, entry = self.heap[0]
            if entry.waiting and number == entry.number:
                return entry
            heapq.heappop(self.heap)
        return None


@dataclass(eq=False)
class _Tenant(Generic[T]):
    name: str
    weight: float
    ratio: float  # of actual to declared cost
    served: float = 0.0
    classes: dict[Priority, _Class[T]] = field(default_factory=lambda: {each: _Class() for each in Priority})
    waiting: int = 0
    waiting_cost_s: float = 0.0
    running: int = 0
    now_class: float = 0.0  # virtual time among the classes

    def least_class(self) -> _Class[T]:
        return min((each for each in self.classes.values() if each.waiting), key=lambda each: each.served)


class FairQueue(Generic[T]):
    """All that waits. `weights` gives some tenants larger shares than 1."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self._tenants: dict[str, _Tenant[T]] = {}
        self._virtual = 0.0  # the least served share of those that waited at the last start
        self._ratio = 1.0
        self._mean_s = _FIRST_MEAN_S
        self._count = 0
        self._waiting = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def size_bytes(self) -> int:
        """Of everything that waits."""
        return self._bytes

    def push(self, entry: Entry[T], now: float) -> None:
        """Adds what arrives now."""
        entry.arrived = now
        self._enter(entry)

    def move(self, entry: Entry[T], tenant: str, priority: Priority) -> None:
        """Lets an entry that waits go on waiting elsewhere, or with another deadline: somebody else wants it, too."""
        self.remove(entry)
        entry.tenant, entry.priority = tenant, priority
        self._enter(entry)

    def remove(self, entry: Entry[T]) -> bool:
        """Takes out an entry; whether it was still waiting."""
        if not entry.waiting:
            return False
        entry.waiting = False
        tenant = self._tenants[entry.tenant]
        tenant.waiting -= 1
        tenant.waiting_cost_s -= entry.cost_s
        tenant.classes[entry.priority].waiting -= 1
        self._waiting -= 1
        self._bytes -= entry.size_bytes
        self._forget(tenant)
        return True

    def pop(
        self, now: float, may_start: Callable[[Entry[T]], bool] = lambda _: True
    ) -> tuple[Entry[T] | None, list[Entry[T]]]:
        """What starts now, and what was found expired on the way; both left the queue.

        The one whose turn it is keeps its turn when it may not start yet; nothing overtakes it.
        """
        expired: list[Entry[T]] = []
        while (entry := self._next()) is not None and entry.expired(now):
            self.remove(entry)
            expired.append(entry)
        if entry is None or not may_start(entry):
            return None, expired
        self._start(entry)
        return entry, expired

    def finished(self, entry: Entry[T], actual_s: float) -> None:
        """An entry that was popped gave its slot back after `actual_s`."""
        tenant = self._tenants[entry.tenant]
        tenant.running -= 1
        correction_s = actual_s - entry.charged_s
        tenant.served += correction_s / tenant.weight
        tenant.classes[entry.priority].served += correction_s / CLASS_WEIGHTS[entry.priority]
        self._mean_s += _LEARNING * (actual_s - self._mean_s)
        if entry.cost_s > 0:
            ratio = max(actual_s / entry.cost_s, _LEAST_RATIO)
            tenant.ratio += _LEARNING * (ratio - tenant.ratio)
            self._ratio += _LEARNING * (ratio - self._ratio)
        self._forget(tenant)

    def newest_of_largest(self) -> Entry[T] | None:
        """The newest entry of the tenant with the most entries waiting: what a full queue can spare best."""
        if not self._waiting:
            return None
        tenant = max(self._tenants.values(), key=lambda each: each.waiting)
        entries = (entry for each in tenant.classes.values() for _, _, entry in each.heap if entry.waiting)
        return max(entries, key=lambda entry: (entry.priority, entry.arrived, entry.number), default=None)

    def waiting_of(self, tenant: str) -> int:
        """Entries of a tenant that wait."""
        known = self._tenants.get(tenant)
        return known.waiting if known is not None else 0

    def depths(self) -> dict[Priority, int]:
        """Entries that wait, by class."""
        return {
            priority: sum(tenant.classes[priority].waiting for tenant in self._tenants.values())
            for priority in Priority
        }

    def ages_s(self, now: float) -> dict[Priority, float]:
        """How long the oldest of each class has waited."""
        oldest = dict.fromkeys(Priority, now)
        for entry in self.entries():
            oldest[entry.priority] = min(oldest[entry.priority], entry.arrived)
        return {priority: now - since for priority, since in oldest.items()}

    def entries(self) -> Iterator[Entry[T]]:
        """All that waits, in no order."""
        for tenant in self._tenants.values():
            for each in tenant.classes.values():
                for _, number, entry in each.heap:
                    if entry.waiting and number == entry.number:
                        yield entry

    def _enter(self, entry: Entry[T]) -> None:
        self._count += 1
        entry.number = self._count
        entry.waiting = True
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            weight = self._weights.get(entry.tenant, 1.0)
            tenant = self._tenants[entry.tenant] = _Tenant(entry.tenant, weight, self._ratio)
        if not tenant.waiting:
            tenant.served = max(tenant.served, self._virtual)  # nobody saves up shares by asking for nothing
        its_class = tenant.classes[entry.priority]
        if not its_class.waiting:
            its_class.served = max(its_class.served, tenant.now_class)
        heapq.heappush(its_class.heap, (entry.due, entry.number, entry))
        its_class.waiting += 1
        tenant.waiting += 1
        tenant.waiting_cost_s += entry.cost_s
        self._waiting += 1
        self._bytes += entry.size_bytes

    def _next(self) -> Entry[T] | None:
        if not self._waiting:
            return None
        waiting = [tenant for tenant in self._tenants.values() if tenant.waiting]
        furthest = min(each.served for each in waiting) + BURST * self._mean_s
        within = [each for each in waiting if each.served <= furthest]
        tenant = min(within, key=lambda each: (each.waiting_cost_s * each.ratio / each.weight, each.served))
        return tenant.least_class().head()

    def _start(self, entry: Entry[T]) -> None:
        self._virtual = max(self._virtual, min(each.served for each in self._tenants.values() if each.waiting))
        tenant = self._tenants[entry.tenant]
        tenant.running += 1
        self.remove(entry)
        entry.charged_s = entry.cost_s * tenant.ratio
        its_class = tenant.classes[entry.priority]
        tenant.now_class = max(tenant.now_class, its_class.served)
        tenant.served += entry.charged_s / tenant.weight
        its_class.served += entry.charged_s / CLASS_WEIGHTS[entry.priority]
        if len(self._tenants) > _SWEEP_ABOVE:
            for each in list(self._tenants.values()):
                self._forget(each)

    def _forget(self, tenant: _Tenant[T]) -> None:
        """Drops a tenant about whom nothing is worth remembering; heaps that hold removed entries mostly are swept."""
        if tenant.waiting:
            for each in tenant.classes.values():
                if len(each.heap) > 64 and len(each.heap) > 4 * each.waiting:
                    each.heap = [place for place in each.heap if place[2].waiting and place[1] == place[2].number]
                    heapq.heapify(each.heap)
        elif not tenant.running and tenant.served <= self._virtual:
            self._tenants.pop(tenant.name, None)
