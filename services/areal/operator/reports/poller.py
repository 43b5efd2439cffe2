"""Asks the roles of every running job how they do, round after round.

Owns one task a job, and what each job's roles said last. Says when something changed that a decision may hang on;
figures that always change are picked up by the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from areal.operator.hot_fields import HotFields
from areal.operator.observed import Pod, Reports
from areal.operator.reports.ask import Asker, Targets
from areal.operator.runtime.resources import Key
from areal.operator.times import DRAIN_GRACE_S, POLL_S

log = logging.getLogger(__name__)

_NOTHING = Reports()


class Poller:
    """Follows jobs from `follow` to `forget`. All on one event loop."""

    def __init__(
        self,
        asker: Asker,
        on_change: Callable[[Key], None],
        *,
        period_s: float = POLL_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._asker = asker
        self._on_change = on_change
        self._period_s = period_s
        self._sleep = sleep
        self._targets: dict[Key, Targets] = {}
        self._latest: dict[Key, Reports] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def latest(self, key: Key) -> Reports:
        """What a job's roles said last; each report says when."""
        return self._latest.get(key, _NOTHING)

    def follow(self, key: Key, targets: Targets) -> None:
        """Ask these from the next round on."""
        self._targets[key] = targets
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._run(key), name=f"reports of {key[0]}/{key[1]}")

    def forget(self, key: Key) -> None:
        """Ask nobody about this job any more."""
        self._targets.pop(key, None)
        self._latest.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Forget all jobs and close all connections."""
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def restart(self, key: Key, pod: Pod, epoch: int) -> bool:
        """See `Asker.restart`."""
        targets = self._targets.get(key)
        return targets is not None and await self._asker.restart(key, pod, targets.token, epoch)

    async def drain(self, key: Key, pod: Pod) -> bool:
        """See `Asker.drain`."""
        targets = self._targets.get(key)
        return targets is not None and await self._asker.drain(key, pod, targets.token, DRAIN_GRACE_S)

    async def set_hot(self, key: Key, hot: HotFields) -> bool:
        """See `Asker.set_hot`."""
        targets = self._targets.get(key)
        if targets is None or targets.controller is None:
            return False
        return await self._asker.set_hot(key, targets.controller, targets.token, hot)

    async def _run(self, key: Key) -> None:
        try:
            while True:
                await self._round(key)
                await self._sleep(self._period_s)
        finally:
            with contextlib.suppress(Exception):
                await asyncio.shield(self._asker.forget(key))

    async def _round(self, key: Key) -> None:
        targets, before = self._targets[key], self.latest(key)
        try:
            reports = await self._asker.round(key, targets, before)
            await self._asker.keep_only(key, targets)
        except Exception:  # one job's trouble must not end its reports for ever, and it must be seen
            log.exception("reports of %s/%s", *key)
            return
        if self._targets.get(key) is None:
            return
        self._latest[key] = reports
        if news(before, reports):
            self._on_change(key)


def news(before: Reports, after: Reports) -> bool:
    """Whether a decision may hang on what changed."""
    return _gist(before) != _gist(after)


def _gist(reports: Reports) -> object:
    controller, trainer = reports.controller, reports.trainer
    return (
        {uid: (r.phase, r.epoch, r.awaits_epoch, r.exit_code) for uid, r in reports.launchers.items()},
        (controller.hot, controller.stalled, controller.step) if controller else None,
        (trainer.step, trainer.checkpoint_step) if trainer else None,
    )
