"""Writer of the live file: what every role says, once a second, for `areal why` and `areal view`.

Owns since when a role has not answered. A file that can't be written costs nothing but itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from areal.launch.core import Phase
from areal.local.status import RoleState, RunView
from areal.why.live import Live, LiveRole, LiveWait, write_live


class LiveFile:
    """`asked`: names of the roles that can answer."""

    def __init__(self, path: Path, asked: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._asked = frozenset(asked)
        self._clock = clock
        self._answered: dict[str, float] = {}
        self._newest: RunView | None = None
        self._pid = os.getpid()
        self._began = psutil.Process().create_time()

    def show(self, view: RunView, *, ended: bool = False) -> None:
        """Replace the file with this picture."""
        self._newest = view
        status = view.rollout
        live = Live(
            at=time.time(),
            pid=self._pid,
            pid_began=self._began,
            step=view.step,
            max_steps=view.max_steps,
            policy=view.policy,
            idle=status.idle_reason if status else "",
            stalled=view.stalled,
            answers=status is not None,
            ended=ended,
            roles=[self._role(role) for role in view.roles],
        )
        with contextlib.suppress(OSError):
            write_live(self._path, live)

    def end(self) -> None:
        """The run is over; what was last known stays."""
        if self._newest is not None:
            self.show(self._newest, ended=True)

    def _role(self, role: RoleState) -> LiveRole:
        now = self._clock()
        answers = role.answers or role.name not in self._asked or role.phase not in (Phase.READY, Phase.DRAINING)
        if answers:
            self._answered[role.name] = now
        return LiveRole(
            name=role.name,
            phase=role.phase.value,
            pid=role.pid,
            restarts=role.restarts,
            reason=role.reason,
            doing=role.doing,
            policy=role.policy_id,
            silent_s=0.0 if answers else now - self._answered.setdefault(role.name, now),
            waits=[LiveWait(w.name, w.waits_for, w.age_s, w.deadline_s) for w in role.waits],
        )
