"""Liveness and readiness of this process, for the kubelet.

Owns the two answers: `/healthz` (kill me) and `/readyz` (my caches are full). A thread gives them (`pages`), so that
they are given while the event loop is stuck, which is one of the things they have to tell.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus

from areal_operator.runtime.pages import Page
from areal_operator.runtime.reflector import Pulse
from areal_operator.runtime.times import HealthTimes, WatchTimes


class OperatorHealth:
    """What is wrong, as sentences; nothing is good. Safe from any thread."""

    def __init__(
        self,
        *,
        synced: Callable[[], bool],
        pulses: Sequence[Pulse],
        times: HealthTimes | None = None,
        watch: WatchTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._synced = synced
        self._pulses = pulses
        self._times = times or HealthTimes()
        self._silence_s = (watch or WatchTimes()).longest_s * self._times.watch_silence
        self._clock = clock
        self._beat_at = clock()
        self.lag_s = 0.0

    async def beat(self) -> None:
        """Show that the event loop turns, until cancelled."""
        while True:
            before = self._clock()
            await asyncio.sleep(self._times.beat_s)
            self._beat_at = self._clock()
            self.lag_s = max(0.0, self._beat_at - before - self._times.beat_s)

    def ills(self) -> list[str]:
        """Why this process should be restarted."""
        now = self._clock()
        ills = []
        stuck_s = now - self._beat_at
        if max(stuck_s - self._times.beat_s, self.lag_s) > self._times.loop_lag_s:
            ills.append(f"the event loop is {max(stuck_s, self.lag_s):.0f} s behind")
        silent = ((pulse.resource, now - pulse.heard_at) for pulse in self._pulses)
        return ills + [f"nothing was heard of {name} for {s:.0f} s" for name, s in silent if s > self._silence_s]

    def unready(self) -> list[str]:
        """Why this process can't do its work yet."""
        return [] if self._synced() else ["caches are not synced"]


def page_of(ills: Callable[[], list[str]]) -> Callable[[], Page]:
    """A probe's page: 200 when nothing is wrong."""

    def page() -> Page:
        wrong = ills()
        text = "\n".join(wrong or ["ok"]) + "\n"
        return Page(text.encode(), HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK)

    return page
