"""What people see of a run: lines, pictures, rates."""

from __future__ import annotations

import io
from dataclasses import replace
from unittest.mock import Mock

import pytest
from areal.errors import Kind
from areal.local import view
from areal.local.display import Display, LineSchedule
from areal.local.status import Rate, RunView
from areal.observe.causes import why
from areal.observe.live import Diagnosis, Live, LiveRole, LiveWait, RolloutFlow
from areal.processes.core import ChildPhase
from areal.record.run_rows import HeldOut, Step
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

ROLES = [
    LiveRole("redis", ChildPhase.READY),
    LiveRole("controller", ChildPhase.READY, doing="admitting", policy="3.f1"),
    LiveRole("worker-0", ChildPhase.READY, restarts=1, waits=[LiveWait("weights", "version ≥ 4 on a server", 2.0)]),
    LiveRole("trainer", ChildPhase.BACKING_OFF, reason="killed by SIGKILL"),
]
LIVE = Live(
    at=100.0,
    pid=1,
    pid_began=1.0,
    step=4,
    max_steps=10,
    policy="4.f1",
    flow=RolloutFlow(leased=3, ready=5, reserved_bytes=1 << 20, budget_bytes=1 << 31, tombstones={"filtered": 2}),
    roles=ROLES,
    name="digits",
    max_staleness=2,
    elapsed_s=75.0,
    generation_tps=12345.0,
)
VIEW = RunView(
    LIVE,
    steps=[
        Step(step, 0.1 * step, 1.0, 2, 100, 1.0, {"wait": 0.5}, 100.0 + step, trained_tokens=678) for step in range(4)
    ],
    held_out=[HeldOut(0, 0.6), HeldOut(2, 0.9), HeldOut(4, 0.8)],
)
NEW = RunView(Live(at=0.0, pid=1, pid_began=1.0, step=0, max_steps=10, name="digits"))


def saying(**fields: object) -> RunView:
    """`VIEW` with other fields of its state."""
    return replace(VIEW, live=replace(LIVE, **fields))  # type: ignore[arg-type]


def drawn(shown: RunView, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view.render(shown, "stopping"))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_updates_that_were_not_finite_are_no_flat_rewards():
    steps = [Step(step, 0.5, tokens=100, groups=4, updates=0, skipped=1) for step in range(3)]
    assert "no gradient in 3 steps: every gradient was not finite" in view.warning(replace(VIEW, steps=steps))


def test_steps_without_a_gradient_are_warned_of_after_three():
    def without(count: int) -> RunView:
        idle = Step(9, 0.0, tokens=100, groups=4, same_reward_groups=4, updates=0)
        return replace(VIEW, steps=[*VIEW.steps, *[idle] * count])

    assert view.warning(VIEW) == view.warning(without(2)) == ""
    assert "no gradient in 3 steps: all groups of a step earned the same" in view.warning(without(3))
    assert "WARNING: no gradient in 3 steps" in view.line(without(3))
    assert "100% of groups earned the same" in drawn(without(3))
    for steps in ([*VIEW.steps, *without(3).steps[-3:]], without(3).steps[-3:]):
        more = "more than " * (len(steps) == 3)
        assert f"no gradient in {more}3 steps" in view.warning(replace(VIEW, steps=steps, earlier=[0.5]))


def test_the_curve_begins_before_the_steps_of_which_all_is_known():
    shown = replace(VIEW, earlier=[9.0])
    assert shown.rewards == pytest.approx([9.0, 0.0, 0.1, 0.2, 0.3])
    assert view.sparkline(shown.rewards) in drawn(shown)
    learning = replace(shown, steps=[replace(step, reward=None, fixed_loss=1.0) for step in shown.steps])
    assert (learning.rewards, learning.losses) == ([], [9.0, 1.0, 1.0, 1.0, 1.0])


def test_a_role_that_used_half_of_its_restarts_is_warned_of():
    used = "9 of 10 restarts in 600 s are used (7× killed by SIGKILL; 2× exit 75: something outside failed)"
    shown = saying(roles=[*ROLES[:-1], replace(ROLES[-1], warning=used)])
    assert f"WARNING: trainer: {used}" in view.line(shown)
    assert "trainer: 9 of 10 restarts in 600 s are used (7× killed by SIGKILL" in drawn(shown)
    assert "WARNING" not in view.line(VIEW)


def test_a_line_counts_tombstones_by_reason():
    assert "tombstones 2 filtered" in view.line(VIEW)


def test_the_picture_shows_everything_that_was_promised():
    text = drawn(VIEW)
    for word in (
        "step 4/10", "4.f1", "0.150", "0.600 → 0.800 (v4), best 0.900 (v2)", "1.00 mean, 2 max of η=2", "12.3k tok/s",
        "678 tok/s", "1.0 MiB of 2.0 GiB", "2 filtered", "waits: version ≥ 4 on a server, 2s", "killed by SIGKILL",
        "6s left", "▁", "stopping", "3 leased, 5 ready",
    ):  # fmt: skip
        assert word in text, word


def test_the_picture_of_a_run_that_has_nothing_yet_is_drawn():
    text = drawn(NEW)
    assert "step 0/10" in text


def test_a_narrow_terminal_still_shows_who_and_how():
    text = drawn(VIEW, width=80)
    assert all(role.name in text and str(role.phase) in text for role in ROLES)


def test_line_and_picture_have_the_words_of_why():
    killed = replace(LIVE, alive=True, roles=[replace(ROLES[-1], cause="role-killed")])
    said = why(killed)
    assert said.named == "trainer: it ended (killed by SIGKILL), and is started again soon [role-killed]"
    shown = saying(cause=said)
    assert view.line(shown).endswith(said.named)
    assert said.named in drawn(shown)
    well = saying(cause=Diagnosis("none", "nothing is wrong"))
    assert "wrong" not in view.line(well) + drawn(well)


def test_a_line_has_the_figures():
    assert view.line(VIEW) == (
        " 1m15s  step 4/10 · policy 4.f1 · reward 0.150 · held-out 0.600 → 0.800 (v4), best 0.900 (v2) · staleness 1.00"
        " · generation 12.3k tok/s · training 678 tok/s · tombstones 2 filtered · restarts 1"
    )


def test_before_the_first_step_a_line_says_so():
    assert view.line(NEW).endswith("all roles are up; no step yet")


def test_lines_come_after_ten_steps_five_seconds_with_news_or_thirty_without():
    lines = LineSchedule()

    def due(step: int, at: float) -> bool:
        steps = [Step(step - 1, 0.5)] if step else []
        return lines.due(RunView(replace(NEW.live, step=step, elapsed_s=at), steps), at) is not None

    assert due(0, 0.0)
    assert not due(1, 4.0)
    assert due(1, 5.0)
    assert not due(10, 6.0)
    assert due(11, 7.0)
    assert not due(11, 20.0)
    assert due(11, 37.0)


def test_a_line_of_a_run_without_steps_says_so_and_only_news_bring_one_early() -> None:
    lines, groups = LineSchedule(), Diagnosis("untrained-groups", "20 groups in a row were rejected", since_s=1.0)

    def due(second: int, **fields: object) -> str | None:
        return lines.due(saying(**fields), float(second))

    said = [text for second in range(60) if (text := due(second, cause=replace(groups, since_s=second))) is not None]
    assert len(said) == 2
    assert "no step for" not in said[0]
    assert "20 groups in a row were rejected, for 30 s [untrained-groups] · no step for 30 s" in said[-1]
    assert due(61, cause=Diagnosis("bytes-full", "the budget is used up")) is not None
    after = due(62, step=21)
    assert after is not None
    assert "no step for" not in after


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(1, 60))
def test_a_sparkline_fits_and_is_made_of_bars(values, width):
    bars = view.sparkline(values, width)
    assert len(bars) == min(len(values), width)
    assert set(bars) <= set("▁▂▃▄▅▆▇█")


def test_a_rising_reward_is_a_rising_sparkline():
    bars = view.sparkline([0.01 * step for step in range(100)], 8)
    assert bars == "▁▂▃▄▅▆▇█"


def test_a_rate_survives_a_counter_that_starts_again():
    rate = Rate(window_s=10.0)
    assert rate.at(0.0, 0) == 0.0
    assert rate.at(2.0, 200) == 100.0
    rate.at(3.0, 50)
    assert rate.at(4.0, 150) == 100.0
    assert rate.grown == 350
    assert rate.mean == 350 / 4


def test_remaining_time_follows_the_newest_steps():
    assert VIEW.remaining_s == 6.0
    assert NEW.remaining_s is None


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59, "59s"), (61, "1m01s"), (7500, "2h05m"), (None, "—")])
def test_durations_are_for_people(seconds, text):
    assert view.duration(seconds) == text


async def test_a_lasting_stall_ends_the_run_and_a_passing_one_does_not():
    now, told = [0.0], Mock()
    stall = saying(stalled="64 groups were refused", stalled_by=Kind.INFRA)

    class Source:
        picture = VIEW

        async def view(self) -> RunView:
            return self.picture

    source = Source()
    display = Display(source, Console(file=io.StringIO()), told, clock=lambda: now[0])  # type: ignore[arg-type]
    for at, stalled in ((0, True), (50, True), (55, False), (60, True), (115, True)):
        now[0], source.picture = float(at), stall if stalled else VIEW
        await display._look()
    told.assert_not_called()
    now[0] = 120.0
    await display._look()
    told.assert_called_once_with("stalled for 60 s: 64 groups were refused", Kind.INFRA)
    told.reset_mock()
    now[0], source.picture = 200.0, VIEW
    await display._look()
    source.picture = saying(stalled="8 of 8 rows fail", stalled_by=Kind.DATA)
    for at in (201.0, 206.0):
        now[0] = at
        await display._look()
    told.assert_called_once_with("stalled for 5 s: 8 of 8 rows fail", Kind.DATA)


def test_wasted_tokens_are_told_with_where_they_went_once_there_are_some() -> None:
    fates = {"generated": 1000, "lost": 3, "aborted": 1}
    shown = saying(flow=RolloutFlow(token_fates=fates))
    assert "wasted tokens 0.40%: lost 3, stale 0, aborted 1" in view.line(shown)
    assert "0.40%: lost 3, stale 0, aborted 1" in drawn(shown)
    assert "wasted" not in view.line(saying(flow=RolloutFlow(token_fates={"generated": 10})))
