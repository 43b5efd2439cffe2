"""Shares among tenants and classes, deadlines, and no time of a slot wasted: in a simulated clock."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

import pytest
from areal_judge.judge.dispatch.fair_queue import BURST, Entry, FairQueue
from areal_judge.judge.dispatch.values import Priority
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

QUANTUM_S = 1.0


@dataclass(frozen=True)
class Ask:
    """One request of a simulation."""

    at: float
    tenant: str
    actual_s: float = QUANTUM_S
    priority: Priority = Priority.TRAIN
    deadline: float | None = None


@dataclass(frozen=True)
class Seen:
    """What became of a request: when it started, or None when it expired."""

    ask: Ask
    started: float | None

    @property
    def wait_s(self) -> float:
        assert self.started is not None
        return self.started - self.ask.at


def simulate(asks: list[Ask], slots: int) -> list[Seen]:
    """Serves all requests; asserts that no slot idles while something waits, and that nothing expired starts."""
    queue: FairQueue[Ask] = FairQueue()
    arrivals = sorted(asks, key=lambda ask: ask.at)
    running: list[tuple[float, int, Entry[Ask], float]] = []
    seen: list[Seen] = []
    now, number = 0.0, 0
    while arrivals or running or len(queue):
        times = [ask.at for ask in arrivals[:1]] + [each[0] for each in running[:1]]
        now = max(now, min(times)) if times else now
        while running and running[0][0] <= now:
            _, _, entry, began = heapq.heappop(running)
            queue.finished(entry, now - began)
        while arrivals and arrivals[0].at <= now:
            ask = arrivals.pop(0)
            queue.push(Entry(ask, ask.tenant, ask.priority, ask.deadline), now)
        while len(running) < slots:
            entry, expired = queue.pop(now)
            seen += [Seen(late.item, None) for late in expired]
            assert all(late.expired(now) for late in expired)
            if entry is None:
                assert not len(queue)
                break
            assert not entry.expired(now)
            seen.append(Seen(entry.item, now))
            number += 1
            heapq.heappush(running, (now + entry.item.actual_s, number, entry, now))
    assert len(seen) == len(asks)
    return seen


def waits(seen: list[Seen], tenant: str) -> list[float]:
    return sorted(each.wait_s for each in seen if each.ask.tenant == tenant)


def load(counts: dict[str, int], *, over_s: float, seed: int = 0) -> list[Ask]:
    rng = random.Random(seed)
    return [Ask(rng.uniform(0, over_s) if over_s else 0.0, tenant) for tenant, n in counts.items() for _ in range(n)]


@pytest.mark.parametrize("over_s", [0.0, 60.0, 600.0], ids=["at once", "in a minute", "as fast as served"])
@pytest.mark.parametrize("slots", [1, 2, 8])
def test_a_small_tenant_waits_at_most_twice_as_long_as_alone_and_a_quantum(slots: int, over_s: float) -> None:
    counts = {"large": 901, "middle": 90, "small": 9}
    asks = load(counts, over_s=over_s)
    together = waits(simulate(asks, slots), "small")
    alone = waits(simulate([ask for ask in asks if ask.tenant == "small"], slots), "small")
    assert together[-1] <= 2 * alone[-1] + QUANTUM_S + 1e-9


def test_large_tenants_share_alike_in_the_long_run() -> None:
    asks = [Ask(0.0, tenant, 0.1) for tenant in ("a", "b", "c") for _ in range(2000)]
    seen = simulate(asks, 2)
    half = [each.ask.tenant for each in seen[: len(seen) // 2]]
    for tenant in ("a", "b", "c"):
        assert half.count(tenant) * 0.1 == pytest.approx(100, abs=BURST * 0.1)


def test_a_tenant_that_always_has_little_waiting_gets_no_more_than_its_share_for_long() -> None:
    queue: FairQueue[str] = FairQueue()

    def push(tenant: str) -> None:
        queue.push(Entry(tenant, tenant, Priority.TRAIN, None), 0.0)

    for tenant in ("a", "b", "c"):
        for _ in range(1000):
            push(tenant)
    push("sly")
    served: dict[str, int] = dict.fromkeys(("a", "b", "c", "sly"), 0)
    for _ in range(1600):
        entry, _ = queue.pop(0.0)
        assert entry is not None
        served[entry.tenant] += 1
        queue.finished(entry, 1.0)
        if entry.tenant == "sly":
            push("sly")
    assert served["sly"] <= 1600 / 4 + BURST
    assert min(served.values()) >= 1600 / 4 - BURST


def test_nobody_saves_up_shares_by_asking_for_nothing() -> None:
    busy = [Ask(float(at), "busy") for at in range(200)]
    burst = [Ask(100.0, "late") for _ in range(50)]
    seen = simulate(busy + burst, 1)
    after = [each.ask.tenant for each in seen if each.started is not None and 100.0 <= each.started < 160.0]
    assert after.count("busy") >= 15


def test_what_expired_is_never_started() -> None:
    asks = [Ask(0.0, "t", 10.0, deadline=1.0), Ask(0.0, "t", deadline=5.0), Ask(0.0, "t", deadline=None)]
    seen = {each.ask.deadline: each.started for each in simulate(asks, 1)}
    assert seen == {1.0: 0.0, 5.0: None, None: 10.0}


@st.composite
def traffic(draw: st.DrawFn) -> list[Ask]:
    tenants = draw(st.integers(1, 5))
    return [
        Ask(
            at=draw(st.floats(0, 30)),
            tenant=f"t{draw(st.integers(1, tenants))}",
            actual_s=draw(st.floats(0.01, 5)),
            priority=draw(st.sampled_from(Priority)),
            deadline=draw(st.none() | st.floats(0, 100)),
        )
        for _ in range(draw(st.integers(0, 40)))
    ]


@settings(deadline=None, max_examples=examples(40))
@given(traffic(), st.integers(1, 4))
def test_every_request_starts_or_expires_and_no_slot_idles(asks: list[Ask], slots: int) -> None:
    seen = simulate(asks, slots)
    assert sorted((each.ask.at, each.ask.tenant) for each in seen) == sorted((ask.at, ask.tenant) for ask in asks)
    assert all(each.started is not None for each in seen if each.ask.deadline is None)


@settings(deadline=None, max_examples=examples(40))
@given(traffic())
def test_no_tenant_starves_while_others_keep_coming(asks: list[Ask]) -> None:
    flood = [Ask(at / 10, "flood", 1.0) for at in range(1000)]
    patient = [Ask(ask.at, ask.tenant, 1.0, ask.priority) for ask in asks]
    others = {ask.tenant for ask in patient}
    for each in simulate(flood + patient, 1):
        if each.ask.tenant in others:  # of six tenants, each a burst ahead of it at most
            assert each.wait_s <= 6 * (len(patient) + BURST)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
def test_removed_entries_never_start_and_counts_stay_right(steps: list[tuple[str, bool]]) -> None:
    queue: FairQueue[int] = FairQueue()
    kept: set[int] = set()
    for number, (tenant, remove) in enumerate(steps):
        entry = Entry(number, tenant, Priority.TRAIN, None, size_bytes=10)
        queue.push(entry, 0.0)
        if remove:
            assert queue.remove(entry)
            assert not queue.remove(entry)
        else:
            kept.add(number)
    assert (len(queue), queue.size_bytes) == (len(kept), 10 * len(kept))
    assert sum(queue.depths().values()) == len(kept)
    started = set()
    while (entry := queue.pop(0.0)[0]) is not None:
        started.add(entry.item)
        queue.finished(entry, 1.0)
    assert started == kept
    assert (len(queue), queue.size_bytes) == (0, 0)


def test_who_may_not_start_yet_keeps_its_turn() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push(Entry("large", "t", Priority.TRAIN, 1.0), 0.0)
    queue.push(Entry("small", "t", Priority.TRAIN, 2.0), 0.0)
    assert queue.pop(0.0, lambda entry: entry.item == "small") == (None, [])
    entry, _ = queue.pop(0.0)
    assert entry is not None
    assert entry.item == "large"


def test_classes_of_a_tenant_share_two_to_one() -> None:
    asks = [Ask(0.0, "t", priority=priority) for priority in Priority for _ in range(400)]
    first = [each.ask.priority for each in simulate(asks, 1)[:300]]
    assert first.count(Priority.TRAIN) == pytest.approx(200, abs=3)


def test_a_class_is_first_in_first_out() -> None:
    asks = [Ask(0.0, "t", actual_s=1.0 + n / 100) for n in range(20)]
    assert [each.ask for each in simulate(asks, 1)] == asks
