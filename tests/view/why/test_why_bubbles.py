"""Time by role and cause: each second once, under the right name, whatever the spans."""

from __future__ import annotations

from itertools import pairwise

import pytest
from areal_view.why.bubbles import (
    BusySpan,
    EpisodeTimes,
    Gate,
    StepTimes,
    account,
    closed_spans,
    covered,
    trainer_spans,
    union,
)
from hypothesis import given, settings
from hypothesis import strategies as st

GATE = Gate(batch=2, ahead=1, max_steps=10, staleness=4)


def row(step: int, ended: float, wall: float, **seconds: float) -> StepTimes:
    return StepTimes(step, ended, wall, seconds)


def made(group: int | None, began: float, ended: float, *, scored: float = 0.0, server: str = "s0") -> EpisodeTimes:
    score = [BusySpan(ended, ended + scored)] if scored else []
    return EpisodeTimes(group, server, [BusySpan(began, ended)], score, version=0, tokens=10)


ROWS = [row(0, 10.0, 10.0, wait=6.0, train=4.0), row(1, 20.0, 10.0, publish=1.0, wait=4.0, train=4.0)]
EPISODES = [
    made(0, 0.0, 3.0), made(1, 1.0, 4.0, scored=1.0), made(None, 5.0, 5.5), made(2, 8.0, 12.0), made(3, 8.0, 12.0),
    made(4, 12.0, 13.0), made(5, 12.0, 13.0),
]  # fmt: skip


def test_every_second_of_every_role_has_one_cause() -> None:
    told = account(ROWS, EPISODES, GATE, ["s0", "s1"])
    assert (told.began, told.ended) == (0.0, 20.0)
    assert told.roles["trainer"] == pytest.approx(
        {"train": 8.0, "waits: generation": 4.0 + 2.0, "waits: hand-over": 0.5, "waits: scoring": 1.0,
         "waits: evaluation": 0.5, "waits: weights": 2.0, "publish": 1.0, "other": 1.0}
    )  # fmt: skip
    # groups 0–3 may begin before version 1 is published, at 11 s, and two more with it
    assert told.roles["s0"] == pytest.approx(
        {"generates": 9.0, "evaluates": 0.5, "idle: scoring": 1.0, "idle: hand-over": 2.5, "idle: gate closed": 7.0}
    )
    assert sum(told.roles["s1"].values()) == pytest.approx(20.0)
    assert told.share("trainer", "train") == pytest.approx(0.4)


def test_the_gate_is_closed_when_as_many_groups_began_as_versions_allow() -> None:
    closed = closed_spans(ROWS, EPISODES, GATE)
    assert closed == [BusySpan(8.0, 11.0), BusySpan(12.0, 20.0)]
    thin = [one for one in EPISODES if one.group in (1, 3, 5)]  # what is recorded of a share
    assert closed_spans(ROWS, thin, GATE)[-1].ended == 20.0
    assert closed_spans(ROWS, [], GATE) == []


def test_time_without_a_trainer_is_a_restart() -> None:
    rows = [row(0, 5.0, 5.0, train=5.0), row(1, 20.0, 4.0, wait=1.0, train=3.0)]
    assert trainer_spans(rows)["restarts"] == [BusySpan(5.0, 16.0)]
    assert account(rows, [], GATE).roles["trainer"] == pytest.approx(
        {"restarts": 11.0, "train": 8.0, "waits: hand-over": 1.0}
    )


def test_phases_that_overlap_the_step_before_are_cut_to_their_step() -> None:
    (train,) = trainer_spans([row(3, 10.0, 2.0, train=4.0)])["train"]
    assert (train.began, train.ended) == (8.0, 10.0)


SPANS = st.lists(st.tuples(st.floats(0, 30), st.floats(0, 5)).map(lambda t: BusySpan(t[0], t[0] + t[1])), max_size=6)


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0, 4), st.floats(0, 4)), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.one_of(st.none(), st.integers(0, 20)), SPANS, SPANS, st.sampled_from(["s0", "s1"])), max_size=6
    ),
)
def test_the_causes_of_a_role_sum_to_its_time(
    steps: list[tuple[float, float, float]], episodes: list[tuple[int | None, list[BusySpan], list[BusySpan], str]]
) -> None:
    ended, rows = 0.0, []
    for number, (wall, wait, train) in enumerate(steps):
        ended += wall
        rows.append(row(number, ended, wall, wait=wait, train=train))
    told = account(rows, [EpisodeTimes(g, server, made, scored) for g, made, scored, server in episodes], GATE, ["s2"])
    for causes in told.roles.values():
        assert sum(causes.values()) == pytest.approx(ended)
        assert min(causes.values()) >= 0.0


@settings(max_examples=20)
@given(SPANS)
def test_a_union_covers_the_same_time_once(spans: list[BusySpan]) -> None:
    joined = union(spans)
    assert all(a.ended < b.began for a, b in pairwise(joined))
    assert covered(joined, 0.0, 40.0) <= sum(span.seconds for span in spans) + 1e-9
    assert all(covered(joined, span.began, span.ended) == pytest.approx(span.seconds) for span in spans)
