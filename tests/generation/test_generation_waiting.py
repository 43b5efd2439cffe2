"""The agent's queue of requests that the engine does not have yet."""

from __future__ import annotations

from dataclasses import dataclass

from areal.generation.waiting import SPARE_ENTRIES, WaitingQueue
from hypothesis import given
from hypothesis import strategies as st


@dataclass(eq=False)
class Item:
    rid: str
    floor: int


def test_the_lowest_floor_comes_first_and_equals_in_the_order_of_arrival():
    queue = WaitingQueue[Item]()
    for name, floor in (("a", 3), ("b", 1), ("c", 3), ("d", 2)):
        queue.push(Item(name, floor))
    assert [queue.pop().rid for _ in range(4)] == ["b", "d", "a", "c"]
    assert queue.pop() is None


def test_requests_that_leave_take_their_memory_with_them():
    queue = WaitingQueue[Item]()
    for number in range(10_000):
        queue.push(Item(str(number), 0))
        queue.discard(str(number))
    assert len(queue) == 0
    assert len(queue._heap) <= 2 * SPARE_ENTRIES


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 5)),
        st.tuples(st.just("discard"), st.integers(0, 40)),
        st.tuples(st.just("pop"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_is_always_the_sorted_list_of_what_waits(steps):
    queue, model, made = WaitingQueue[Item](), [], 0
    for what, number in steps:
        if what == "push":
            model.append(Item(str(made), number))
            queue.push(model[-1])
            made += 1
        elif what == "discard":
            queue.discard(str(number))
            model = [item for item in model if item.rid != str(number)]
        elif what == "pop":
            first = min(model, key=lambda item: (item.floor, int(item.rid)), default=None)
            assert queue.pop() is first
            model = [item for item in model if item is not first]
        assert {item.rid for item in queue} == {item.rid for item in model}
        assert len(queue) == len(model)
