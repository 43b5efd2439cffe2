"""Devices that a run's trainer and its engines share by turns: a server's phase, and mutual exclusion by file locks.

The controller says whose turn it is; that never both are on the cards at once is the kernel's promise here: a lock is
held by an open file, so it ends with its holder's last process, however that dies, and no sooner.
"""

import fcntl
import os
from enum import StrEnum
from pathlib import Path


class ServerPhase(StrEnum):
    """Phase of a server. One with cards of its own is always awake."""

    AWAKE = "awake"
    ASLEEP = "asleep"  # its memory is given back, its requests are kept: neither dead nor routable
    WAKING = "waking"  # it takes its memory again


class CardSide(StrEnum):
    """Who has the cards; several processes of a side have them together."""

    TRAINING = "training"
    SERVING = "serving"


class CardLock:
    """One process' part in the lock. Not for use by several threads."""

    def __init__(self, directory: Path, side: CardSide) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        other = CardSide.SERVING if side is CardSide.TRAINING else CardSide.TRAINING
        self._gate, self._own, self._other = (_opened(directory / name) for name in ("gate", side, other))
        self.held = False

    @property
    def descriptor(self) -> int:
        """A child that inherits it holds the lock as its parent does, until one of them lets go or both have ended."""
        return self._own

    def try_take(self) -> bool:
        """Whether this process has the cards now: not while the other side does."""
        if not self.held:
            try:
                fcntl.flock(self._gate, fcntl.LOCK_EX | fcntl.LOCK_NB)  # who holds it may have been stopped
                fcntl.flock(self._other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(self._other, fcntl.LOCK_UN)
                fcntl.flock(self._own, fcntl.LOCK_SH)
                self.held = True
            except BlockingIOError:
                return False
            finally:
                fcntl.flock(self._gate, fcntl.LOCK_UN)
        return True

    def release(self) -> None:
        """Let go, for the children that inherited it too."""
        fcntl.flock(self._own, fcntl.LOCK_UN)
        self.held = False

    def close(self) -> None:
        """Nothing more is asked. A child that inherited the lock keeps what it holds."""
        for descriptor in (self._gate, self._own, self._other):
            os.close(descriptor)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
