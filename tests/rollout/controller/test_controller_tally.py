"""Counting parts of the core by themselves: ranks, seats, workers, servers, streaks, bad rows, means."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.ledger.values import SampleMeta
from areal.rollout.contract.values import FailureKind, SampleDone, WorkerReport
from areal.rollout.controller.fleet import MOST_GROUPS, PROGRESS_WINDOW_S, Crew, Seats, ServerFleet
from areal.rollout.controller.groups import GroupTombstones, GroupVerdict, PromptGroup
from areal.rollout.controller.inputs import RefusalReport, ServerReport
from areal.rollout.controller.settings import TrainPosition, retry_pause_s
from areal.rollout.controller.streak import FAILED_TO_PAUSE, FAILED_TO_STALL, LEAST, WINDOW, BadRows, Streak, headline
from areal.rollout.controller.tally import Tally
from areal.values.interval import wilson
from controller_bench import SETTINGS, weights

# ---- ranks and position


def test_a_group_has_one_tombstone_and_each_reason_its_count() -> None:
    stones = GroupTombstones({3: "filtered"})
    assert (stones.add(7, "rejected"), stones.add(7, "ended")) == (True, False)
    assert (stones.reason(7), stones.reason(4), stones.last, len(stones)) == ("rejected", None, 7, 2)
    assert (3 in stones, 4 in stones, stones.counts) == (True, False, {"filtered": 1, "rejected": 1})
    assert GroupTombstones().last == -1


@pytest.mark.parametrize(("asked", "step", "is_now"), [(10, 3, 10), (2, 3, 3), (3, 3, 3)])
def test_a_run_is_as_long_as_its_trainer_is_at_least(asked: int, step: int, is_now: int) -> None:
    assert TrainPosition(replace(SETTINGS, max_steps=asked), 1, 0, step).max_steps == is_now


def test_pauses_between_tries_double_up_to_a_bound() -> None:
    assert [retry_pause_s(tries) for tries in (0, 1, 2, 5, 6, 9, 10, 60)] == [
        0.25,
        0.5,
        1.0,
        8.0,
        15.0,
        15.0,
        15.0,
        15.0,
    ]


# ---- workers


def report(name: str = "w", incarnation: str = "1", **fields: object) -> WorkerReport:
    return WorkerReport(name, incarnation, fields.pop("capacity", 4), **fields)  # type: ignore[arg-type]


def test_places_go_to_the_preferred_worker_then_to_the_emptiest() -> None:
    crew = Crew()
    for name, capacity in (("a", 1), ("b", 3), ("c", 2)):
        crew.beat(0.0, report(name, capacity=capacity))
    seats = Seats(crew.live(), {"a": 2, "b": 1})
    assert seats.free == 4, "a holds more than its places, which costs nobody else's"
    assert ("a" in seats, "d" in seats) == (True, False)
    assert [seats.take(), seats.take("c"), seats.take("a"), seats.take()] == ["b", "c", "b", "c"]
    assert (seats.take(), seats.take("b"), seats.free) == (None, None, 0)
    assert Seats([], {}).take() is None


def test_a_worker_dies_once_and_a_new_process_of_its_name_is_fresh() -> None:
    crew = Crew()
    assert crew.beat(0.0, report(capacity=2**32, tokens_total=5))
    assert crew.workers["w"].capacity == MOST_GROUPS
    assert not crew.beat(0.1, report(tokens_total=9))
    assert not crew.beat(0.2, report(tokens_total=7))
    assert (crew.tokens_total, [worker.worker_id for worker in crew.live()]) == (9, ["w"])
    assert crew.tick(60.0) == ["w"]
    assert crew.tick(61.0) == []
    assert crew.live() == []
    assert crew.beat(62.0, report(incarnation="2", tokens_total=3))
    assert (crew.tokens_total, len(crew.live())) == (12, 1)


# ---- servers


def server(name: str = "s", version: int = 3, **fields: object) -> ServerReport:
    values = {"ready": True, **fields}
    return ServerReport(name, "1", "a:1", f"{version}.f1", version, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("candidate", "follows"), [((3, 1), False), ((4, 1), True), ((2, 1), False), ((1, 2), True), ((9, 0), False)]
)
def test_weights_follow_by_fence_then_by_version(candidate: tuple[int, int], follows: bool) -> None:
    assert ServerFleet(weights(3, 1)).follow(weights(*candidate)) is follows
    assert ServerFleet().follow(weights(0, 0))


def test_the_newest_version_is_that_of_a_server_that_may_be_asked() -> None:
    fleet = ServerFleet()
    assert fleet.newest_version is None
    fleet.beat(0.0, server("a", 2))
    fleet.beat(0.0, server("b", 5, ready=False))
    fleet.beat(0.0, server("c", 7, draining=True))
    fleet.beat(0.0, server("d", -1))
    assert fleet.newest_version == 2
    fleet.beat(0.0, server("d", 0))
    assert fleet.newest_version == 2
    assert fleet.states() == {"ready": 2, "not ready": 1, "draining": 1}


def test_a_server_makes_progress_while_its_count_moves() -> None:
    fleet = ServerFleet()
    fleet.beat(0.0, server(progress=1))
    fleet.beat(1.0, server(progress=2))
    assert fleet.progressing_version(1.0) == 3
    for tenth in range(11, 40):
        fleet.beat(tenth / 10, server(progress=2))
    assert fleet.progressing_version(1.0 + PROGRESS_WINDOW_S - 0.05) == 3
    assert fleet.progressing_version(1.0 + PROGRESS_WINDOW_S) is None


def test_a_stall_by_refusals_needs_every_server_that_lives_and_the_served_version() -> None:
    fleet = ServerFleet(weights(4))
    assert fleet.refusal() == ""
    fleet.beat(0.0, server("a", refused=RefusalReport("4.f1", 3, "checksum")))
    fleet.beat(0.0, server("b", refused=RefusalReport("4.f1", 2, "checksum")))
    assert fleet.refusal() == ""
    fleet.beat(0.1, server("b", refused=RefusalReport("3.f1", 9, "checksum")))
    assert fleet.refusal() == ""
    fleet.beat(0.2, server("b", refused=RefusalReport("4.f1", 4, "shape")))
    assert fleet.refusal() == "WeightsRefused: every server refused 4.f1 (a: checksum; b: shape)"
    fleet.beat(0.3, server("c"))
    assert fleet.refusal() == ""
    for tenth in range(4, 60):
        fleet.beat(tenth / 10, server("a", refused=RefusalReport("4.f1", 3, "checksum")))
        fleet.tick(tenth / 10)
    assert fleet.refusal() == "WeightsRefused: every server refused 4.f1 (a: checksum)"
    assert ServerFleet().refusal() == ""


# ---- streaks


def ended(streak: Streak, count: int, reason: str = "rejected", now: float = 0.0, *, chosen: bool = False) -> None:
    for _ in range(count):
        streak.ended(now, GroupVerdict(reason, "exception: KeyError: 'x'", chosen))


def test_failures_pause_admission_and_each_pause_is_followed_by_some_tries() -> None:
    streak = Streak()
    ended(streak, FAILED_TO_PAUSE - 1)
    assert (streak.admissible(0.0, 0, 100), streak.bad_luck) == (100, "")
    ended(streak, 1)
    assert streak.bad_luck == f"{FAILED_TO_PAUSE} groups in a row were rejected: KeyError: 'x'"
    first, second = retry_pause_s(0), retry_pause_s(1)
    assert streak.admissible(first - 0.01, 0, 100) == 0
    assert (streak.admissible(first, 0, 100), streak.admissible(first, 0, 5)) == (16, 5)
    ended(streak, 1, now=first)
    assert streak.admissible(first, 0, 100) == 16, "no new pause before the tries are used"
    streak.admitted(10)
    assert streak.admissible(first, 0, 100) == 6
    streak.admitted(6)
    assert streak.admissible(first, 0, 100) == 0
    ended(streak, 1, now=first)
    assert streak.admissible(first + second - 0.01, 0, 100) == 0
    assert streak.admissible(first + second, 0, 100) == 16
    streak.completed()
    assert (streak.admissible(first, 0, 100), streak.stall(1)) == (100, "")


def test_a_pause_begins_with_the_first_length_after_a_complete_group() -> None:
    streak = Streak()
    for now in (0.0, 10.0):
        ended(streak, FAILED_TO_PAUSE, now=now)
        assert streak.admissible(now + retry_pause_s(0), 0, 100) == 16
        streak.admitted(16)
        streak.completed()


def test_groups_that_the_job_turns_down_stall_at_its_limit_alone_and_failures_much_earlier() -> None:
    streak = Streak()
    ended(streak, 5, "filtered", chosen=True)
    assert (streak.stall(0), streak.stall(6), streak.admissible(0.0, 6, 9)) == ("", "", 9)
    assert streak.stall(5) == "5 groups in a row were filtered: KeyError: 'x'"
    assert streak.admissible(0.0, 5, 9) == 0
    ended(streak, FAILED_TO_STALL - 1, "infra")
    assert (streak.stall(0), streak.by_infrastructure) == ("", True)
    ended(streak, 1, "infra")
    assert streak.stall(0).startswith("69 groups in a row ended without training (5 filtered, 64 infra): ")
    other = Streak()
    ended(other, 99, "ended")
    assert (other.stall(1), other.bad_luck, other.by_infrastructure) == ("", "", False)


def test_a_headline_is_one_line_with_the_innermost_place() -> None:
    detail = 'exception: KeyError: 1\nTraceback\n  File "/a/b.py", line 3\n  File "/a/c.py", line 7'
    assert headline(detail) == "KeyError: 1 (c.py:7)"
    assert headline("a\tb\x00" + "x" * 400) == "a b " + "x" * 296


def test_the_share_of_bad_rows_is_of_the_newest_groups_and_of_enough_of_them() -> None:
    rows, bad = BadRows(), GroupVerdict("rejected", "KeyError: 'x'")
    for _ in range(LEAST // 2):
        rows.ended(bad)
    rows.ended(GroupVerdict("rejected", "None", chosen=True))
    rows.ended(GroupVerdict("infra"))
    for _ in range(LEAST // 2 - 1):
        rows.completed()
    assert rows.excess(0.1) == "", "too few to say"
    rows.completed()
    assert rows.excess(0.5) == ""
    assert rows.excess(0.22) == "", "four of eight may be chance"
    assert rows.excess(0.21).startswith(f"{LEAST // 2} of the newest {LEAST} groups (50%) failed by their rows")
    assert "(21%) allows; the newest: KeyError: 'x'" in rows.excess(0.21)
    for _ in range(WINDOW):
        rows.completed()
    assert rows.excess(0.0) == "", "what is older is forgotten"


@pytest.mark.parametrize(
    ("found", "count", "bound"), [(21, 53, 0.276), (4, 8, 0.215), (8, 8, 0.676), (0, 9, 0.0), (1, 512, 0.000345)]
)
def test_a_share_of_few_is_trusted_as_far_as_wilson_does(found: int, count: int, bound: float) -> None:
    assert wilson(found / count, count)[0] == pytest.approx(bound, abs=5e-4, rel=1e-2)
    rows = BadRows()
    for number in range(count):
        if number < found:
            rows.ended(GroupVerdict("rejected", "why"))
        else:
            rows.completed()
    assert bool(rows.excess(0.25)) == (bound > 0.25)


def test_the_newest_groups_of_a_large_job_are_four_batches() -> None:
    rows = BadRows(1000)
    for _ in range(4000):
        rows.ended(GroupVerdict("rejected", "why"))
    for _ in range(3000):
        rows.completed()
    assert rows.excess(0.2).startswith("1000 of the newest 4000 groups")


# ---- means


def sample(reward: float, oldest: int = 0) -> SampleMeta:
    return SampleMeta(1, reward, oldest, oldest, 2, 1, False, 0)


def test_a_sample_below_its_floor_breaks_a_promise_and_one_at_it_does_not() -> None:
    tally = Tally()
    assert (tally.reward_sampled, tally.reward_mean, tally.age_mean) == (0.0, 0.0, 0.0)
    tally.sampled(SampleDone(0, 0, 1.0, 3, 3, 1), floor=3)
    assert tally.violations == 0
    tally.sampled(SampleDone(0, 1, 0.0, 2, 3, 1, masked=True), floor=3)
    assert (tally.violations, tally.ends, tally.reward_sampled) == (1, {"complete": 1, "masked": 1}, 0.5)
    tally.failed(FailureKind.NONE)
    tally.failed(FailureKind.HANG)
    tally.lost(0)
    assert tally.ends == {"complete": 1, "masked": 1, "exception": 1, "hang": 1}
    tally.lost(2)
    assert tally.ends["infra"] == 2


def test_the_mean_reward_is_of_one_batch_of_groups_and_a_life_has_its_times() -> None:
    tally = Tally()
    for number, rewards in enumerate(((0.0, 1.0), (1.0, 1.0), (0.5, 0.0))):
        group = PromptGroup(
            number, done={index: sample(reward) for index, reward in enumerate(rewards)}, attempt=number
        )
        group.leased_at, group.closed_at = float(number), 10.0
        tally.completed(group, batch_groups=2)
    assert tally.reward_mean == (1.0 + 0.25) / 2
    assert (tally.durations_s, tally.closed) == ([(1, 9.0), (2, 8.0)], {"complete": 3}), "0 was never leased"
    tally.tombstoned(12.0, "filtered", None)
    tally.tombstoned(13.0, "infra", group)
    assert (tally.closed["tombstoned"], tally.tombstones) == (2, {"filtered": 1, "infra": 1})
    (life,) = tally.lives
    assert (life.group, life.closed_at, life.ended_at, life.reason, life.attempts) == (2, 13.0, 13.0, "infra", 2)


def test_the_age_of_a_group_is_of_its_oldest_token_when_it_is_taken() -> None:
    tally = Tally()
    groups = [
        PromptGroup(0, done={0: sample(0.0, 3), 1: sample(0.0, 1)}),
        PromptGroup(1, done={0: sample(0.0, 9)}),
        PromptGroup(2),
    ]
    tally.trained(5.0, [(4, groups[0]), (4, groups[1]), (4, groups[2])])
    assert (tally.age_max, tally.age_sum, tally.age_count, tally.age_mean) == (3, 3, 2, 1.5)
    assert [(life.group, life.step) for life in tally.lives] == [(0, 4), (1, 4), (2, 4)]
