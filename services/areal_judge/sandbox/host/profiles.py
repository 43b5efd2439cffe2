"""One kind of zygote: as many as asked, replaced when they die or have grown old.

Owns the choice among zygotes, their uid ranges and their recycling. A kind that can't be started says so to each run.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import replace

from areal.errors import ArealError, InfraError
from areal.net.heartbeat import Backoff

from areal_judge.sandbox.host.zygotes import Zygote, ZygoteConfig, start_zygote

_RECYCLE_RUNS = 5_000
_RECYCLE_S = 600.0
_RECYCLE_GROWTH = 1.3
_UIDS_EACH = 512  # more cells at once than a zygote ever has
_UID_RANGES = 128
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0  # between failed starts
_numbers = itertools.count(1)


class Profile:
    """Zygotes of one configuration."""

    def __init__(self, config: ZygoteConfig, count: int, on_restart: Callable[[], None]) -> None:
        self._config = config
        self._count = count
        self._on_restart = on_restart
        self._zygotes: list[Zygote] = []
        self._retired: set[Zygote] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopping = False
        self._backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self.trouble: ArealError | None = None

    async def start(self) -> None:
        """Starts all of them. Raises InfraError when one doesn't start."""
        started = await asyncio.gather(*(self._start_one() for _ in range(self._count)), return_exceptions=True)
        self._zygotes = [one for one in started if isinstance(one, Zygote)]
        failed = [one for one in started if isinstance(one, BaseException)]
        if failed:
            await self.stop()
            raise failed[0]
        for one in [zygote for zygote in self._zygotes if zygote.dead]:
            self._ended(one)

    async def _start_one(self) -> Zygote:
        number = next(_numbers)
        uid = self._config.first_uid + number % _UID_RANGES * _UIDS_EACH
        return await start_zygote(replace(self._config, first_uid=uid, label=f"z{number}"), self._ended)

    def zygotes(self) -> list[Zygote]:
        """All that are up, retired ones too."""
        return [zygote for zygote in (*self._zygotes, *self._retired) if not zygote.dead]

    async def pick(self) -> Zygote:
        """The least busy one; waits while all are being replaced. Raises InfraError when none comes up."""
        while True:
            alive = [zygote for zygote in self._zygotes if not zygote.dead]
            if alive:
                return min(alive, key=lambda zygote: zygote.load)
            if self._stopping or self.trouble is not None:
                raise InfraError(f"no sandbox zygote is up: {self.trouble or 'stopping'}", fix="try again")
            self._changed.clear()
            await self._changed.wait()

    def used(self, zygote: Zygote) -> None:
        """After each run: an old zygote is replaced, a retired one without runs is stopped."""
        if zygote in self._retired:
            if zygote.load == 0:
                self._retired.discard(zygote)
                self._spawn(zygote.stop())
            return
        old = zygote.runs >= _RECYCLE_RUNS or time.monotonic() - zygote.started > _RECYCLE_S
        grown = zygote.first_rss and zygote.rss > zygote.first_rss * _RECYCLE_GROWTH
        if (old or grown) and not zygote.retiring and not self._stopping:
            zygote.retiring = True
            self._spawn(self._renew(zygote))

    def _ended(self, zygote: Zygote) -> None:
        if zygote in self._zygotes and not self._stopping:
            self._zygotes.remove(zygote)
            self._on_restart()
            self._spawn(self._replace_dead(zygote))
        elif zygote in self._retired:
            self._retired.discard(zygote)
            self._spawn(zygote.stop())

    async def _renew(self, old: Zygote) -> None:
        with contextlib.suppress(ArealError):
            fresh = await self._start_one()
            if self._stopping or old not in self._zygotes:
                await fresh.stop()
                return
            self._zygotes[self._zygotes.index(old)] = fresh
            if old.load:
                self._retired.add(old)
            else:
                await old.stop()
            self._changed.set()
            return
        old.retiring = False

    async def _replace_dead(self, dead: Zygote) -> None:
        await dead.stop()
        while not self._stopping:
            try:
                fresh = await self._start_one()
            except ArealError as error:
                self.trouble = error
                self._changed.set()
                await asyncio.sleep(self._backoff.failed())
                continue
            if self._stopping:
                await fresh.stop()
                return
            self._backoff.succeeded()
            self.trouble = None
            self._zygotes.append(fresh)
            self._changed.set()
            return

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        self._stopping = True
        self._changed.set()
        everyone = [*self._zygotes, *self._retired]
        self._zygotes, self._retired = [], set()
        await asyncio.gather(*(zygote.stop() for zygote in everyone))
        while self._tasks:
            await asyncio.wait(self._tasks)
