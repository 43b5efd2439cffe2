"""A call of a user's function is a wait that tells which line it is at, for as long as it lasts."""

from __future__ import annotations

import threading

import pytest
from areal.observe.waits import WAIT, WaitRegistry, told

LOCK = threading.Lock()


def inner() -> None:
    with LOCK:
        pass


def compute_loss(entered: threading.Event) -> int:
    entered.set()
    inner()
    return 7


def test_a_lock_that_never_opens_has_a_place() -> None:
    waits, entered, answers = WaitRegistry("trainer"), threading.Event(), list[int]()
    watched = told(compute_loss, waits)
    with LOCK:
        thread = threading.Thread(target=lambda: answers.append(watched(entered)))
        thread.start()
        assert entered.wait(60)
        line = inner.__code__.co_firstlineno + 1
        words = f"compute_loss of test_observe_user_code.py, at line {line} in inner"
        said = ""
        while said != words:  # it may still be on its way to the lock
            (wait,) = waits.list()
            said = wait.waits_for
            assert wait.name == WAIT
            assert said.startswith("compute_loss of test_observe_user_code.py")
    thread.join(60)
    assert (answers, waits.list()) == ([7], [])


def test_what_it_raises_is_raised_and_the_wait_is_over() -> None:
    waits = WaitRegistry("trainer")
    with pytest.raises(ZeroDivisionError):
        told(lambda: 1 / 0, waits)()
    assert waits.list() == []
