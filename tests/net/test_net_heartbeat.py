"""Detection is arithmetic on beats; no clock of its own."""

from areal.net.heartbeat import PERIOD_S, Detector, Health
from hypothesis import given
from hypothesis import strategies as st


def test_a_silent_peer_is_suspect_then_dead_within_three_seconds():
    detector = Detector(now=0.0)
    assert detector.health(0.9) is Health.LIVE
    assert detector.health(1.0) is Health.SUSPECT
    assert detector.health(2.5) is Health.DEAD


def test_one_late_beat_revives():
    detector = Detector(now=0.0)
    detector.beat(10.0, progress=1)
    assert detector.health(10.4) is Health.LIVE


@given(st.lists(st.floats(min_value=0.0, max_value=0.99), min_size=1, max_size=50))
def test_beats_closer_than_two_periods_never_raise_suspicion(gaps):
    now, detector = 0.0, Detector(now=0.0)
    for gap in gaps:
        now += gap * 2 * PERIOD_S
        assert detector.health(now) is Health.LIVE
        detector.beat(now, progress=0)


def test_frozen_progress_is_told_apart_from_silence():
    detector = Detector(now=0.0)
    for tick in range(1, 21):
        detector.beat(tick * 0.5, progress=7)
    assert detector.health(10.0) is Health.LIVE
    assert detector.frozen_s(10.0) == 9.5
