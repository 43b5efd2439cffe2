"""A child without a process: what a launcher supervises in a pod that runs nothing.

Everything is decided by the real `ChildCore` and served by the real `LauncherService`; only the process is played. It
is ready as soon as it is started, and ends when a test, or an order of the core, ends it. `tests/processes` runs the
same cases against a launcher with a real process.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from areal.processes.core import Action, ChildCore, LifePolicy, ProbeAnswer, RestartBy
from areal.processes.supervise import ChildStatus

GANG_MEMBER = LifePolicy(restart=RestartBy.EPOCH, first_start=RestartBy.EPOCH)
DRAINED = 143
KILLED = -9

_pids = itertools.count(100_000)


class ScriptedChild:
    """The face of `Supervised` that `LauncherService` uses. Not safe from threads: call it from its server's loop."""

    def __init__(
        self,
        name: str,
        policy: LifePolicy | None = None,
        *,
        on_start: Callable[[int], None] = lambda epoch: None,
        on_drain: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_start` hears the epoch of each start; `on_drain` says whether the process ends at once when asked to."""
        self.name = name
        self._core = ChildCore(policy or LifePolicy())
        self._on_start = on_start
        self._on_drain = on_drain
        self._clock = clock
        self._pid = 0

    @property
    def status(self) -> ChildStatus:
        """How it is now."""
        core = self._core
        return ChildStatus(
            name=self.name,
            phase=core.phase,
            pid=self._pid,
            restarts=core.restarts,
            epoch=core.epoch,
            last_exit=core.last_exit,
            reason=core.reason,
            since=core.since,
            awaits_epoch=core.awaits_epoch,
        )

    def start(self) -> None:
        """As a launcher does when its pod starts."""
        self._act(self._core.start(self._clock()))

    def restart(self, epoch: int) -> bool:
        """Be running in `epoch`."""
        accepted, actions = self._core.restart(epoch, self._clock())
        self._act(actions)
        return accepted

    def drain(self, grace_s: float | None = None) -> None:
        """Ask it to stop."""
        self._act(self._core.drain(grace_s, self._clock()))

    def exit(self, code: int) -> None:
        """The process ends by itself, or at last; nothing when there is none."""
        if self._pid:
            self._pid = 0
            self._act(self._core.exited(code, (), self._clock()))

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if action is Action.START:
                self._pid = next(_pids)
                self._on_start(self._core.epoch)
                self._core.probed(ProbeAnswer.READY, self._clock())
            elif action is Action.KILL:
                self.exit(KILLED)
            elif self._on_drain():
                self.exit(DRAINED)
