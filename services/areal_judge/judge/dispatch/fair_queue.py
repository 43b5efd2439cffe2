"""Fair queue: start-time fair queueing of slot seconds among tenants, two priority classes a tenant, FIFO in a class.

Pure: it is told the time. A job's own reward service has one tenant, for which this is a FIFO of two classes. Promises:

- Whenever something that has not expired waits, `pop` gives something (work-conserving); it never gives what expired.
- Tenants that wait get equal shares of slot seconds (Goyal, Vin, Cheng 1996). A start is charged the mean cost of an
  entry; its end corrects that to what it took.
- Within `BURST` mean entries of equal shares, the tenant with the fewest entries waiting goes first: a small job beside
  large ones waits hardly longer than it would alone, while in the long run all get their shares, and none starves.
- Within a tenant, classes share by `CLASS_WEIGHTS`, so that neither starves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from areal_judge.judge.dispatch.values import Priority

T = TypeVar("T")

BURST = 32  # entries of mean cost that a tenant with little work may be ahead of the tenant furthest behind
CLASS_WEIGHTS: Mapping[Priority, float] = {Priority.TRAIN: 2.0, Priority.EVAL: 1.0}
_LEARNING = 0.2  # weight of the newest cost in the mean
_FIRST_MEAN_S = 1.0  # cost of an entry, until some have finished


@dataclass(eq=False)
class Entry(Generic[T]):
    """Something that waits for a slot, or holds one."""

    item: T
    tenant: str
    priority: Priority
    deadline: float | None  # on the clock of `now`; it never starts after it
    size_bytes: int = 0
    arrived: float = 0.0
    charged_s: float = 0.0
    waiting: bool = False

    def expired(self, now: float) -> bool:
        return self.deadline is not None and self.deadline <= now


@dataclass(eq=False)
class _Tenant(Generic[T]):
    name: str
    served_s: float  # slot seconds
    queues: dict[Priority, deque[Entry[T]]] = field(default_factory=lambda: {each: deque() for each in Priority})
    class_served_s: dict[Priority, float] = field(default_factory=lambda: dict.fromkeys(Priority, 0.0))  # by weight
    waiting: int = 0
    running: int = 0

    def head(self) -> Entry[T]:
        """The first of the class that is furthest behind."""
        chosen = min((each for each in Priority if self.queues[each]), key=self.class_served_s.__getitem__)
        return self.queues[chosen][0]


class FairQueue(Generic[T]):
    """All that waits."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant[T]] = {}
        self._virtual_s = 0.0  # the least served share of those that waited at the last start
        self._mean_s = _FIRST_MEAN_S
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
        entry.arrived, entry.waiting = now, True
        tenant = self._tenants.get(entry.tenant)
        if tenant is None:
            tenant = self._tenants[entry.tenant] = _Tenant(entry.tenant, self._virtual_s)
        if not tenant.waiting:
            tenant.served_s = max(tenant.served_s, self._virtual_s)  # an idle tenant saves up no shares
        if not tenant.queues[entry.priority]:
            others = [tenant.class_served_s[each] for each in Priority if tenant.queues[each]]
            served_s = tenant.class_served_s[entry.priority]
            tenant.class_served_s[entry.priority] = max(served_s, min(others, default=served_s))
        tenant.queues[entry.priority].append(entry)
        tenant.waiting += 1
        self._waiting += 1
        self._bytes += entry.size_bytes

    def remove(self, entry: Entry[T]) -> bool:
        """Takes out an entry; whether it was still waiting."""
        if not entry.waiting:
            return False
        entry.waiting = False
        tenant = self._tenants[entry.tenant]
        tenant.queues[entry.priority].remove(entry)
        tenant.waiting -= 1
        self._waiting -= 1
        self._bytes -= entry.size_bytes
        self._forget(tenant)
        return True

    def pop(
        self, now: float, may_start: Callable[[Entry[T]], bool] = lambda _: True
    ) -> tuple[Entry[T] | None, list[Entry[T]]]:
        """What starts now, and what was found expired on the way; both left the queue.

        An entry that may not start yet keeps its turn; nothing overtakes it.
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
        self._charge(tenant, entry.priority, actual_s - entry.charged_s)
        self._mean_s += _LEARNING * (actual_s - self._mean_s)
        self._forget(tenant)

    def waiting_of(self, tenant: str) -> int:
        """Number of a tenant's entries that wait."""
        known = self._tenants.get(tenant)
        return known.waiting if known is not None else 0

    def depths(self) -> dict[Priority, int]:
        """Entries that wait, by class."""
        return {each: sum(len(tenant.queues[each]) for tenant in self._tenants.values()) for each in Priority}

    def ages_s(self, now: float) -> dict[Priority, float]:
        """How long the oldest of each class has waited."""
        heads = {
            each: [tenant.queues[each][0].arrived for tenant in self._tenants.values() if tenant.queues[each]]
            for each in Priority
        }
        return {each: now - min(arrived, default=now) for each, arrived in heads.items()}

    def entries(self) -> Iterator[Entry[T]]:
        """All that waits, in no order."""
        for tenant in self._tenants.values():
            for queue in tenant.queues.values():
                yield from queue

    def _next(self) -> Entry[T] | None:
        waiting = [tenant for tenant in self._tenants.values() if tenant.waiting]
        if not waiting:
            return None
        furthest_s = min(each.served_s for each in waiting) + BURST * self._mean_s
        within = [each for each in waiting if each.served_s <= furthest_s]
        return min(within, key=lambda each: (each.waiting, each.served_s)).head()

    def _start(self, entry: Entry[T]) -> None:
        least_s = min(each.served_s for each in self._tenants.values() if each.waiting)
        self._virtual_s = max(self._virtual_s, least_s)
        tenant = self._tenants[entry.tenant]
        tenant.running += 1
        self.remove(entry)
        entry.charged_s = self._mean_s
        self._charge(tenant, entry.priority, entry.charged_s)

    @staticmethod
    def _charge(tenant: _Tenant[T], priority: Priority, seconds: float) -> None:
        tenant.served_s += seconds
        tenant.class_served_s[priority] += seconds / CLASS_WEIGHTS[priority]

    def _forget(self, tenant: _Tenant[T]) -> None:
        """Drops a tenant that waits for nothing, runs nothing and is owed nothing."""
        if not tenant.waiting and not tenant.running and tenant.served_s <= self._virtual_s:
            self._tenants.pop(tenant.name, None)
