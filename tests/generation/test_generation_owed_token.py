"""An engine owes a token only while it has requests: starting and idling for long is no stall."""

from __future__ import annotations

from areal.generation.engine_process import STALL_S, OwedToken


def test_an_engine_that_started_for_long_or_idled_for_long_owes_nothing_yet():
    owed = OwedToken()
    assert owed.seconds(owes=False, quiet_s=440.0, now=440.0) == 0.0
    assert owed.seconds(owes=True, quiet_s=441.0, now=441.0) == 0.0
    assert owed.seconds(owes=True, quiet_s=450.0, now=450.0) == 9.0


def test_an_engine_that_makes_no_token_for_its_requests_owes_one_since_it_got_them():
    owed = OwedToken()
    told = [owed.seconds(owes=True, quiet_s=float(now), now=float(now)) for now in range(1000, 1302)]
    assert told[0] == 0.0
    assert told[-1] > STALL_S


def test_a_token_and_a_swap_begin_the_time_again():
    owed = OwedToken()
    owed.seconds(owes=True, quiet_s=0.0, now=0.0)
    assert owed.seconds(owes=True, quiet_s=2.0, now=200.0) == 2.0
    assert owed.seconds(owes=False, quiet_s=202.0, now=400.0) == 0.0
    assert owed.seconds(owes=True, quiet_s=203.0, now=401.0) == 0.0
