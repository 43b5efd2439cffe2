"""The life of a child, told as events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal.processes.core import (
    TERMINAL,
    Action,
    BudgetPolicy,
    ChildCore,
    ChildPhase,
    LifePolicy,
    ProbeAnswer,
    RestartBy,
)
from hypothesis import given
from hypothesis import strategies as st

POLICY = LifePolicy(
    start_deadline_s=10.0,
    hang_s=5.0,
    drain_s=3.0,
    budget=BudgetPolicy(max_restarts=2, window_s=100.0, first_wait_s=1.0),
)
GANG = LifePolicy(restart=RestartBy.EPOCH, start_deadline_s=10.0, drain_s=3.0)
HELD = replace(GANG, first_start=RestartBy.EPOCH)


def running(policy: LifePolicy = POLICY) -> ChildCore:
    core = ChildCore(policy)
    assert core.start(0.0) == [Action.START]
    core.probed(ProbeAnswer.READY, 1.0)
    assert core.phase is ChildPhase.READY
    return core


@pytest.mark.parametrize(
    ("code", "phase"),
    [
        (0, ChildPhase.COMPLETE),
        (64, ChildPhase.FAILED),
        (65, ChildPhase.FAILED),
        (70, ChildPhase.BACKING_OFF),
        (-9, ChildPhase.BACKING_OFF),
    ],
)
def test_an_exit_leads_to(code, phase):
    core = running()
    assert core.exited(code, [], 2.0) == []
    assert core.phase is phase


def test_a_crash_is_followed_by_a_start_after_the_wait():
    core = running()
    core.exited(-9, [], 2.0)
    assert core.tick(2.9) == []
    assert core.tick(3.0) == [Action.START]
    assert (core.phase, core.restarts) == (ChildPhase.STARTING, 1)


def test_a_spent_budget_fails_and_says_why():
    core = running()
    for now in (2.0, 10.0):
        core.exited(75, [], now)
        assert core.tick(now + 5) == [Action.START]
    core.exited(-9, [], 20.0)
    assert core.phase is ChildPhase.FAILED
    assert "killed by SIGKILL; all 2 restarts" in core.reason


def test_half_a_spent_budget_is_told_while_the_child_runs_again():
    core = running()
    assert core.warning(1.5) == ""
    core.exited(-9, [], 2.0)
    core.tick(3.0)
    core.probed(ProbeAnswer.READY, 4.0)
    assert core.warning(4.0) == "1 of 2 restarts in 100 s are used (1× killed by SIGKILL)"


def test_restarts_that_a_person_asks_for_never_end_the_run():
    core = running()
    for number in range(1, 12):
        core.exited(143, [], 10.0 * number)
        assert core.tick(10.0 * number + 5) == [Action.START]
        core.probed(ProbeAnswer.READY, 10.0 * number + 6)
    assert (core.phase, core.warning(120.0)) == (ChildPhase.READY, "")


def test_silence_at_the_start_is_a_hang_after_the_deadline():
    core = ChildCore(POLICY)
    core.start(0.0)
    assert core.probed(ProbeAnswer.SILENT, 9.9) == []
    assert core.probed(ProbeAnswer.SILENT, 10.0) == [Action.KILL]
    core.exited(-9, [], 10.1)
    assert core.last_exit is not None
    assert core.last_exit.reason == "no answer within 10 s of its start"
    assert core.phase is ChildPhase.BACKING_OFF


def test_a_child_that_answers_is_not_hung_however_long_it_is_not_ready():
    core = ChildCore(POLICY)
    core.start(0.0)
    for second in range(1, 100):
        assert core.probed(ProbeAnswer.LIVE, float(second)) == []
    assert (core.phase, core.reason) == (ChildPhase.STARTING, "live, not ready")


def test_silence_of_a_ready_child_is_a_hang():
    core = running()
    assert core.probed(ProbeAnswer.SILENT, 5.9) == []
    assert core.tick(6.0) == [Action.KILL]
    core.exited(-9, [], 6.1)
    assert core.last_exit is not None
    assert "hung" in core.last_exit.reason


def test_a_drain_asks_then_kills():
    core = running()
    assert core.drain(None, 2.0) == [Action.TERMINATE]
    assert core.tick(4.9) == []
    assert core.tick(5.0) == [Action.KILL]
    core.exited(-9, [], 5.1)
    assert core.phase is ChildPhase.STOPPED


@pytest.mark.parametrize("code", [0, 143, -15, 1, 75])
def test_a_drained_child_is_stopped_whatever_it_answers(code):
    core = running()
    core.drain(None, 2.0)
    core.exited(code, [], 2.5)
    assert core.phase is ChildPhase.STOPPED


def test_a_gang_starts_again_only_in_a_new_epoch():
    core = running(GANG)
    core.exited(-9, [], 2.0)
    assert (core.phase, core.awaits_epoch, core.wake_at) == (ChildPhase.BACKING_OFF, True, None)
    assert core.tick(1000.0) == []
    assert core.restart(0, 1000.0) == (True, [])
    assert core.restart(1, 1000.0) == (True, [Action.START])
    assert (core.epoch, core.phase, core.awaits_epoch) == (1, ChildPhase.STARTING, False)


def test_a_member_of_a_gang_of_pods_begins_with_its_epoch():
    core = ChildCore(HELD)
    assert core.start(0.0) == []
    assert (core.phase, core.awaits_epoch, core.wake_at) == (ChildPhase.IDLE, True, None)
    assert core.restart(0, 1.0) == (False, [])
    assert core.restart(4, 2.0) == (True, [Action.START])
    assert (core.phase, core.epoch, core.awaits_epoch, core.restarts) == (ChildPhase.STARTING, 4, False, 0)


def test_a_member_that_waits_for_its_epoch_can_be_drained():
    core = ChildCore(HELD)
    core.start(0.0)
    assert core.drain(None, 1.0) == []
    assert (core.phase, core.awaits_epoch) == (ChildPhase.STOPPED, False)
    assert core.restart(1, 2.0) == (False, [])


@pytest.mark.parametrize("code", [0, 65])
def test_a_member_that_ended_lives_again_in_a_new_epoch(code):
    core = ChildCore(HELD)
    core.start(0.0)
    core.restart(1, 0.0)
    core.exited(code, [], 1.0)
    assert core.phase in TERMINAL
    assert core.restart(2, 2.0) == (True, [Action.START])
    assert core.phase is ChildPhase.STARTING


def test_a_gang_that_regroups_is_not_given_the_time_of_a_checkpoint():
    core = ChildCore(replace(HELD, drain_s=600.0, regroup_s=30.0))
    core.start(0.0)
    core.restart(1, 0.0)
    assert core.restart(2, 10.0) == (True, [Action.TERMINATE])
    assert core.tick(39.9) == []
    assert core.tick(40.0) == [Action.KILL]
    assert core.exited(-9, [], 41.0) == [Action.START]
    assert core.drain(None, 50.0) == [Action.TERMINATE]
    assert core.wake_at == 650.0


def test_a_running_gang_is_stopped_before_its_new_epoch():
    core = running(GANG)
    assert core.restart(3, 2.0) == (True, [Action.TERMINATE])
    assert core.restart(3, 2.1) == (True, [])
    assert core.exited(1, [], 2.5) == [Action.START]
    assert core.epoch == 3
    assert core.restart(2, 3.0) == (False, [])


def test_a_drain_wins_over_a_restart():
    core = running(GANG)
    core.restart(1, 2.0)
    core.drain(None, 2.1)
    core.exited(0, [], 2.5)
    assert core.phase is ChildPhase.STOPPED
    assert core.restart(2, 3.0) == (False, [])


def test_a_drain_while_backing_off_starts_nothing_more():
    core = running()
    core.exited(-9, [], 2.0)
    assert core.drain(None, 2.1) == []
    assert core.phase is ChildPhase.STOPPED
    assert core.tick(100.0) == []


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["silent", "live", "ready", "exit0", "exit64", "exit75", "sigkill", "tick", "drain", "restart"]
        ),
        st.floats(0.0, 8.0),
    ),
    max_size=40,
)


@given(EVENTS, st.sampled_from([POLICY, GANG]))
def test_there_is_never_more_than_one_process_and_terminal_means_none(events, policy):
    core, now = ChildCore(policy), 0.0
    alive, drained = core.start(now) == [Action.START], False
    exits = {"exit0": 0, "exit64": 64, "exit75": 75, "sigkill": -9}
    for event, gap in events:
        now += gap
        if event in exits:
            if not alive:
                continue
            alive = False
            actions = core.exited(exits[event], [], now)
        elif event == "tick":
            actions = core.tick(now)
        elif event == "drain":
            actions, drained = core.drain(None, now), True
        elif event == "restart":
            actions = core.restart(core.epoch + 1, now)[1]
        else:
            actions = core.probed(ProbeAnswer(event), now)
        if Action.START in actions:
            assert not alive, "a second process would run beside the first"
            assert not drained or core.phase is not ChildPhase.STOPPED
            alive = True
        if {Action.KILL, Action.TERMINATE} & set(actions):
            assert alive
        assert (core.phase in TERMINAL) <= (not alive)
        if alive and core.phase is not ChildPhase.DRAINING and not core._killed_for:
            assert core.wake_at is not None, "a wait without a deadline"
