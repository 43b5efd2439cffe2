"""Shares of the two classes, order, deadlines, and no time of a slot wasted: in a simulated clock."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from areal_judge.judge.dispatch.scheduler import TRAIN_IN_A_ROW, ClassQueue, QueueEntry
from areal_judge.judge.dispatch.values import Priority
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples


@dataclass(frozen=True)
class Ask:
    """One request of a simulation."""

    at: float
    actual_s: float = 1.0
    priority: Priority = Priority.TRAIN
    deadline: float | None = None


@dataclass(frozen=True)
class Seen:
    """What became of a request: when it started, or None when it expired."""

    ask: Ask
    started: float | None


def simulate(asks: list[Ask], slots: int) -> list[Seen]:
    """Serves all requests; asserts that no slot idles while something waits, and that nothing expired starts."""
    queue: ClassQueue[Ask] = ClassQueue()
    arrivals = sorted(asks, key=lambda ask: ask.at)
    running: list[float] = []  # ends
    seen: list[Seen] = []
    now = 0.0
    while arrivals or running or len(queue):
        times = [ask.at for ask in arrivals[:1]] + running[:1]
        now = max(now, min(times)) if times else now
        while running and running[0] <= now:
            heapq.heappop(running)
        while arrivals and arrivals[0].at <= now:
            ask = arrivals.pop(0)
            queue.push(QueueEntry(ask, ask.priority, ask.deadline), now)
        while len(running) < slots:
            entry, expired = queue.pop(now)
            seen += [Seen(each.item, None) for each in expired]
            if entry is None:
                assert not len(queue)
                break
            assert not entry.expired(now)
            seen.append(Seen(entry.item, now))
            heapq.heappush(running, now + entry.item.actual_s)
    return seen


def test_what_expired_is_never_started() -> None:
    asks = [Ask(0.0, 10.0, deadline=1.0), Ask(0.0, deadline=5.0), Ask(0.0, deadline=None)]
    seen = {each.ask.deadline: each.started for each in simulate(asks, 1)}
    assert seen == {1.0: 0.0, 5.0: None, None: 10.0}


@st.composite
def traffic(draw: st.DrawFn) -> list[Ask]:
    return [
        Ask(
            at=draw(st.floats(0, 30)),
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
    assert sorted(each.ask.at for each in seen) == sorted(ask.at for ask in asks)
    assert all(each.started is not None for each in seen if each.ask.deadline is None)


@settings(deadline=None, max_examples=examples(40))
@given(traffic(), st.sampled_from(Priority))
def test_no_class_starves_while_the_other_keeps_coming(asks: list[Ask], flooding: Priority) -> None:
    other = Priority.EVAL if flooding is Priority.TRAIN else Priority.TRAIN
    flood = [Ask(at / 10, priority=flooding) for at in range(1000)]
    patient = [Ask(ask.at, priority=other) for ask in asks]
    for each in simulate(flood + patient, 1):
        if each.ask.priority is other:
            assert each.started is not None
            assert each.started - each.ask.at <= (1 + TRAIN_IN_A_ROW) * (1 + len(patient))


@given(st.lists(st.tuples(st.sampled_from(Priority), st.booleans()), max_size=40))
def test_removed_entries_never_start_and_counts_stay_right(steps: list[tuple[Priority, bool]]) -> None:
    queue: ClassQueue[int] = ClassQueue()
    kept: set[int] = set()
    for number, (priority, remove) in enumerate(steps):
        entry = QueueEntry(number, priority, None, size_bytes=10)
        queue.push(entry, 0.0)
        if remove:
            assert queue.remove(entry)
            assert not queue.remove(entry)
        else:
            kept.add(number)
    assert (len(queue), queue.size_bytes) == (len(kept), 10 * len(kept))
    assert sum(queue.depths().values()) == len(kept)
    assert {entry.item for entry in queue} == kept
    started = set()
    while (entry := queue.pop(0.0)[0]) is not None:
        started.add(entry.item)
    assert started == kept
    assert (len(queue), queue.size_bytes) == (0, 0)


def test_the_oldest_of_each_class_has_an_age() -> None:
    queue: ClassQueue[int] = ClassQueue()
    queue.push(QueueEntry(0, Priority.TRAIN, None), 1.0)
    queue.push(QueueEntry(1, Priority.TRAIN, None), 2.0)
    assert queue.ages_s(5.0) == {Priority.TRAIN: 4.0, Priority.EVAL: 0.0}


def test_who_may_not_start_yet_keeps_its_turn() -> None:
    queue: ClassQueue[str] = ClassQueue()
    queue.push(QueueEntry("large", Priority.TRAIN, 1.0), 0.0)
    queue.push(QueueEntry("small", Priority.TRAIN, 2.0), 0.0)
    assert queue.pop(0.0, lambda entry: entry.item == "small") == (None, [])
    entry, _ = queue.pop(0.0)
    assert entry is not None
    assert entry.item == "large"


def test_training_has_two_starts_of_three_while_both_classes_wait() -> None:
    asks = [Ask(0.0, priority=priority) for priority in Priority for _ in range(400)]
    first = [each.ask.priority for each in simulate(asks, 1)[:300]]
    assert first.count(Priority.TRAIN) == 200


def test_a_class_is_first_in_first_out() -> None:
    asks = [Ask(0.0, actual_s=1.0 + n / 100) for n in range(20)]
    assert [each.ask for each in simulate(asks, 1)] == asks
