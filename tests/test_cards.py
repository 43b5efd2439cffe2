"""The lock of shared cards: never both sides, and gone with whoever held it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from areal.cards import CardLock, CardSide
from hypothesis import given, settings
from hypothesis import strategies as st

HOLD = """
import sys
from pathlib import Path
from areal.cards import CardLock, CardSide
print(CardLock(Path(sys.argv[1]), CardSide(sys.argv[2])).try_take(), flush=True)
sys.stdin.read()
"""


def test_a_side_waits_for_the_other_and_not_for_its_own(tmp_path: Path) -> None:
    first, second = (CardLock(tmp_path, CardSide.TRAINING) for _ in range(2))
    server = CardLock(tmp_path, CardSide.SERVING)
    assert first.try_take()
    assert first.try_take()
    assert second.try_take()
    first.release()
    assert not server.try_take()
    second.release()
    assert server.try_take()
    assert not first.try_take()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_never_have_both_sides_the_cards(tmp_path_factory, steps) -> None:
    directory = tmp_path_factory.mktemp("cards")
    sides = [CardSide.TRAINING, CardSide.TRAINING, CardSide.SERVING, CardSide.SERVING]
    locks = [CardLock(directory, side) for side in sides]
    for which, takes in steps:
        lock = locks[which]
        if takes:
            others = [other for other, side in zip(locks, sides, strict=True) if side is not sides[which]]
            assert lock.try_take() == (not any(other.held for other in others))
        else:
            lock.release()
    for lock in locks:
        lock.close()


def test_who_is_killed_lets_go_and_a_child_that_inherited_the_lock_does_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path), "serving"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "True"
        trainer = CardLock(tmp_path, CardSide.TRAINING)
        assert not trainer.try_take()
        holder.kill()
    assert trainer.try_take()
    trainer.release()
    server = CardLock(tmp_path, CardSide.SERVING)
    assert server.try_take()
    with subprocess.Popen(["sleep", "60"], pass_fds=(server.descriptor,)) as engine:
        server.close()
        assert not trainer.try_take()
        engine.kill()
    assert trainer.try_take()
