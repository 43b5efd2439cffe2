"""Writer of the live file: what every role says, once a second, for `areal why` and `areal view`.

Owns since when a role has not answered, or is not ready any more. A file that can't be written costs nothing but
itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from areal_view.why.live import Live, LiveRole, LiveWait, write_live

from areal.launch.core import Phase
from areal.local.status import RoleState, RunView
from areal.local.stopped import stopped

_IDLE_WORDS = 3  # tell one reason from another
_ODD_WAIT_S = 3.0  # a wait of this age, or a silence, is worth a look at the processes


class LiveFile:
    """`asked`: names of the roles that can answer."""

    def __init__(self, path: Path, asked: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._asked = frozenset(asked)
        self._clock = clock
        self._answered: dict[str, float] = {}
        self._ready: dict[str, tuple[int, float]] = {}  # role → process that was ready, when last
        self._newest: RunView | None = None
        self._idle, self._idle_since = "", 0.0
        self._pid = os.getpid()
        self._began = psutil.Process().create_time()

    def show(self, view: RunView, *, ended: bool = False) -> None:
        """Replace the file with this picture."""
        self._newest = view
        status = view.rollout
        roles = [self._role(role) for role in view.roles]
        held = stopped({role.pid for role in view.roles if role.pid}) if _looks_odd(view, roles) else {}
        idle = status.idle_reason if status else ""
        words = " ".join(idle.split()[:_IDLE_WORDS])  # numbers follow, which change
        if words != self._idle:
            self._idle, self._idle_since = words, self._clock()
        live = Live(
            at=time.time(),
            pid=self._pid,
            pid_began=self._began,
            step=view.step,
            max_steps=view.max_steps,
            policy=view.policy,
            idle=idle,
            idle_s=self._clock() - self._idle_since if idle else 0.0,
            stalled=view.stalled,
            answers=status is not None,
            ended=ended,
            roles=[replace(role, stopped=held.get(role.pid, 0)) for role in roles],
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
        if role.phase is Phase.READY:
            self._ready[role.name] = (role.pid, now)
        pid, when = self._ready.get(role.name, (0, now))
        unready = role.phase is Phase.STARTING and pid == role.pid
        return LiveRole(
            name=role.name,
            phase=role.phase.value,
            pid=role.pid,
            restarts=role.restarts,
            reason=role.reason,
            doing=role.doing,
            policy=role.policy_id,
            silent_s=0.0 if answers else now - self._answered.setdefault(role.name, now),
            unready_s=now - when if unready else None,
            waits=[LiveWait(w.name, w.waits_for, w.age_s, w.deadline_s) for w in role.waits],
        )


def _looks_odd(view: RunView, roles: Sequence[LiveRole]) -> bool:
    """Whether anybody is silent or waits; a run that goes on costs no look at its processes."""
    status = view.rollout
    if status is None or status.idle_reason or status.stalled:
        return True
    return any(role.silent_s > 0 or any(wait.age_s > _ODD_WAIT_S for wait in role.waits) for role in roles)
