"""Poller of the roles of every running job, and the queue of orders to them.

Owns one task a job, what each job's roles said last, and one task an order: a role that can't be reached delays no
reconcile, of its own job or of others. Says when something changed that a decision may hang on;
figures that always change are picked up by the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from areal_operator.kube.resources import Key
from areal_operator.operator.hot_fields import HotFields
from areal_operator.operator.observed import Pod, Reports
from areal_operator.operator.reports.ask import Asker, Targets
from areal_operator.operator.times import DRAIN_GRACE_S, POLL_S

log = logging.getLogger(__name__)

_NOTHING = Reports()

Order: TypeAlias = tuple[str, int | str | HotFields]
"""The pod's uid, and what it is to do: an epoch, "drain", or hot fields."""


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
        self._orders: dict[Key, dict[Order, asyncio.Task[None]]] = {}

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
        for order in self._orders.pop(key, {}).values():
            order.cancel()

    async def close(self) -> None:
        """Forget all jobs and close all connections."""
        tasks = [*self._tasks.values(), *(task for orders in self._orders.values() for task in orders.values())]
        for key in list(self._tasks):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    # Orders return at once; one that is under way is not given a second time. What came of it is in the next report.

    def restart(self, key: Key, pod: Pod, epoch: int) -> None:
        """See `Asker.restart`."""
        self._order(key, (pod.uid, epoch), lambda to: self._asker.restart(key, pod, to.token, epoch))

    def drain(self, key: Key, pod: Pod) -> None:
        """See `Asker.drain`."""
        self._order(key, (pod.uid, "drain"), lambda to: self._asker.drain(key, pod, to.token, DRAIN_GRACE_S))

    def set_hot(self, key: Key, hot: HotFields) -> None:
        """See `Asker.set_hot`."""
        targets = self._targets.get(key)
        if targets is not None and (controller := targets.controller) is not None:
            self._order(key, (controller.uid, hot), lambda to: self._asker.set_hot(key, controller, to.token, hot))

    def _order(self, key: Key, what: Order, send: Callable[[Targets], Awaitable[bool]]) -> None:
        targets, orders = self._targets.get(key), self._orders.setdefault(key, {})
        if targets is None or what in orders:
            return
        orders[what] = asyncio.create_task(self._carry(key, what, send(targets)), name=f"order to {key[0]}/{key[1]}")

    async def _carry(self, key: Key, what: Order, sent: Awaitable[bool]) -> None:
        try:
            await sent
        except Exception:  # an order that is lost is given again; an error of ours must be seen
            log.exception("order to %s/%s", *key)
        finally:
            self._orders.get(key, {}).pop(what, None)

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
