"""The queueing model against cases that have a closed form, and its constants against a timeline made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal_view.why.bubbles import BusySpan, EpisodeTimes, Gate, StepTimes
from areal_view.why.pace import Constants, constants_of, forecast, step_s

BASE = Constants(
    batch=4, ahead=2, staleness=2, admission_order=True, max_concurrent=64,
    servers=1, generation_s=0.5, latencies_s=[0.0], work_s=[1.0],
    swap_s=0.0, hand_over_s=0.0, evaluation_s=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "seconds"),
    [
        ({}, 2.0),  # generation holds it up: 4 groups of 0.5 s
        ({"servers": 2}, 1.0),  # both are as fast
        ({"servers": 4}, 1.0),  # the trainer holds it up
        ({"work_s": [3.0]}, 3.0),
        ({"work_s": [1.0, 5.0]}, 3.0),  # what a long step delays, a short one makes good
        ({"staleness": 0, "ahead": 0}, 3.0),  # one after the other
        ({"staleness": 0, "ahead": 0, "swap_s": 0.3, "hand_over_s": 0.2}, 3.5),
        ({"staleness": 0, "ahead": 0, "latencies_s": [0.0, 6.0]}, 7.0),  # all begin together, the longest ends last
        ({"servers": 4, "latencies_s": [0.0, 4.0]}, 5.0 / 3),  # three batches overlap
        ({"evaluation_s": 0.4}, 2.4),
        ({"max_concurrent": 4, "latencies_s": [3.0]}, 3.0),  # so many at a time
    ],
)
def test_a_step_takes_what_arithmetic_says(changed: dict[str, object], seconds: float) -> None:
    assert step_s(replace(BASE, **changed)) == pytest.approx(seconds, rel=0.02)


def test_more_of_anything_never_costs_time() -> None:
    slow = replace(BASE, latencies_s=[0.5, 3.0, 1.0], work_s=[1.0, 2.5], swap_s=0.2, max_concurrent=8)
    by_staleness = [step_s(replace(slow, staleness=eta, ahead=eta, max_concurrent=64)) for eta in (0, 1, 2, 4, 8)]
    assert by_staleness == sorted(by_staleness, reverse=True)
    by_servers = [step_s(replace(slow, servers=count)) for count in (1, 2, 3, 8)]
    assert by_servers == sorted(by_servers, reverse=True)


TAIL = replace(
    BASE, servers=100, generation_s=0.01, latencies_s=[0.5] * 27 + [9.0], admission_order=False
)  # fmt: skip
"""Each seventh batch has an answer of nine steps."""


def test_deadline_order_waits_for_a_long_answer_only_where_it_would_be_too_old() -> None:
    by_bound = {bound: step_s(replace(TAIL, staleness=bound)) for bound in (2, 4, 6, 8, 9)}
    assert by_bound[9] == pytest.approx(1.0)  # it comes back in time
    assert list(by_bound.values()) == sorted(by_bound.values(), reverse=True)
    admission = {bound: step_s(replace(TAIL, staleness=bound, ahead=bound, admission_order=True)) for bound in by_bound}
    assert by_bound[2] == pytest.approx(admission[2])
    assert by_bound[4] < admission[4]  # at half the lead
    assert by_bound[9] < 0.5 * admission[2]  # at the same


@pytest.mark.parametrize("admission_order", [True, False])
@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_no_order_is_faster_than_the_longest_answer_over_the_bound(staleness: int, admission_order: bool) -> None:
    run = replace(
        BASE, servers=1000, staleness=staleness, ahead=staleness, admission_order=admission_order, work_s=[1.0, 1.5],
        latencies_s=[9.0, 0.5, 0.1], hand_over_s=0.2, swap_s=0.3,
    )  # fmt: skip
    bound_s = forecast(run, 1.0).bound_s
    assert bound_s == pytest.approx((9.0 + 0.2 + 1.0 + 0.3) / (staleness + 1))
    assert bound_s <= step_s(run) <= 1.1 * bound_s  # each batch has such an answer, nothing else is late
    assert step_s(replace(run, ahead=staleness // 2)) >= bound_s


def test_the_bound_is_told_with_its_numbers_and_what_moves_it() -> None:
    told = forecast(replace(BASE, latencies_s=[8.0, 2.0], hand_over_s=0.25, swap_s=0.25), 4.0)
    assert told.bound_s == pytest.approx(9.5 / 3)
    for word in ("maxStaleness 2", "3.17 s a step", "is in each 3 batches: ", "8.00 s alone", "1.50 s until", "over 3"):
        assert word in told.bound
    assert "is in each batch: " in forecast(replace(BASE, ahead=0, staleness=0), 4.0).bound


def test_a_lead_of_its_own_is_what_lets_generation_begin() -> None:
    slow = replace(BASE, admission_order=False, staleness=8, latencies_s=[5.0])
    paces = [step_s(replace(slow, servers=100, ahead=ahead)) for ahead in (0, 1, 2, 5)]
    assert paces == pytest.approx([6.0, 3.0, 2.0, 1.0], rel=0.03)


def test_on_policy_both_orders_are_one() -> None:
    alone = replace(BASE, ahead=0, staleness=0, latencies_s=[0.0, 6.0, 1.0], swap_s=0.3)
    assert step_s(alone) == step_s(replace(alone, admission_order=False)) == pytest.approx(7.3)


def test_changes_of_the_lead_say_what_they_are() -> None:
    def offered(ahead: int, staleness: int, *, admission_order: bool = False) -> set[str]:
        run = replace(BASE, ahead=ahead, staleness=staleness, admission_order=admission_order)
        return {one.what for one in forecast(run, 1.0).changes if one.what.startswith(("ahead", "maxS"))}

    assert offered(1, 4) == {"maxStaleness 4 → 0", "maxStaleness 4 → 8, ahead 1", "ahead 1 → 2"}
    assert offered(1, 1) == {
        "maxStaleness 1 → 0", "maxStaleness 1 → 2, ahead 1", "ahead 1 → 2, maxStaleness 1 → 2"
    }  # fmt: skip
    assert offered(0, 0) == {"maxStaleness 0 → 1"}
    assert offered(3, 3, admission_order=True) == {
        "maxStaleness 3 → 0", "maxStaleness 3 → 6"
    }  # fmt: skip


def test_the_best_change_comes_first_with_its_gain() -> None:
    told = forecast(replace(BASE, evaluation_s=0.4), 2.5)
    assert (told.measured_s, told.modelled_s) == (2.5, pytest.approx(2.4))
    gains = {change.what: change.gain for change in told.changes}
    assert next(iter(gains)) == "servers 1 → 2"
    assert gains["servers 1 → 2"] == pytest.approx(1.0)
    assert gains["no evaluations"] == pytest.approx(0.2)
    assert gains["maxStaleness 2 → 0"] == pytest.approx(2.4 / 3.4 - 1)
    assert gains["a trainer that is a third faster"] == pytest.approx(0.0)


def test_constants_are_read_from_the_timeline() -> None:
    rows = [
        StepTimes(0, 10.0, 10.0, {"wait": 6.0, "train": 4.0}),
        StepTimes(1, 20.0, 10.0, {"publish": 1.0, "wait": 5.0, "train": 4.0}),
    ]
    told = [
        EpisodeTimes(0, "s0", [BusySpan(0.0, 4.0)], [BusySpan(4.0, 5.5)], version=0, tokens=40),
        EpisodeTimes(1, "s0", [BusySpan(0.0, 2.0)], [], version=0, tokens=20),
        EpisodeTimes(2, "s0", [BusySpan(11.5, 14.5)], [], version=1, tokens=10),
        EpisodeTimes(None, "s0", [BusySpan(14.0, 16.0)], [], version=1, tokens=10),
    ]
    c = constants_of(rows, told, Gate(2, 1, 10, 4), [(0, 1), (2, 3)], max_concurrent=8, servers=1)
    assert c.generation_s == pytest.approx((4.0 + 3.0) / 4)
    assert c.evaluation_s == pytest.approx(1.5 / 2)  # what it holds up beside training
    assert c.latencies_s == pytest.approx([5.5, 2.0, 1.0])  # group 2's ten tokens took three times what a token takes
    assert c.work_s == pytest.approx([4.0, 5.0])
    assert c.swap_s == pytest.approx(0.5)  # published at 11 s
    assert c.hand_over_s == pytest.approx((0.5 + 1.5) / 2)
    assert (c.ahead, c.staleness, c.admission_order) == (1, 4, False)


def test_the_hand_over_follows_the_batch_that_was_trained() -> None:
    """Groups 1 and 2 overtook group 0."""
    rows = [
        StepTimes(0, 10.0, 10.0, {"wait": 6.0, "train": 4.0}),
        StepTimes(1, 20.0, 10.0, {"wait": 6.0, "train": 4.0}),
    ]
    told = [EpisodeTimes(g, "s0", [BusySpan(0.0, end)], [], 0, 10) for g, end in enumerate((15.8, 5.0, 5.5, 14.0))]
    c = constants_of(rows, told, Gate(2, 1, 10, 4), [(1, 2), (0, 3)], max_concurrent=8, servers=1)
    assert c.hand_over_s == pytest.approx((0.5 + 0.2) / 2)
    unknown = constants_of(rows, told, Gate(2, 1, 10, 4), [], max_concurrent=8, servers=1)
    assert unknown.hand_over_s == 0.0
