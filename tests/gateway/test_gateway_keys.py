"""Keys of sessions: good for one session, for a time."""

from __future__ import annotations

import pytest
from areal.gateway import faults
from areal.gateway.faults import CallRefusal

SECRET = b"secret"


def test_a_key_opens_its_session_until_it_expires():
    key = faults.mint(SECRET, "3.1.0", 100)
    assert faults.verify(SECRET, key, 99.9) == "3.1.0"
    with pytest.raises(CallRefusal) as caught:
        faults.verify(SECRET, key, 100.0)
    assert caught.value.status == 410


@pytest.mark.parametrize("change", [lambda key: "", lambda key: key[:-1], lambda key: key.replace("3.1.0", "4.1.0")])
def test_a_key_that_was_changed_opens_nothing(change):
    with pytest.raises(CallRefusal) as caught:
        faults.verify(SECRET, change(faults.mint(SECRET, "3.1.0", 100)), 0.0)
    assert caught.value.status == 401


def test_another_gateways_key_opens_nothing():
    with pytest.raises(CallRefusal):
        faults.verify(b"other", faults.mint(SECRET, "3.1.0", 100), 0.0)
