"""The engine as a child process: started, watched, started again under a budget.

Owns the process. Tells its owner when the engine answers and when it is gone, with the reason. An engine is replaced
when it exits, when `/health` stays silent, or when it makes no token for long while it owes one: one that loads for
minutes, or waits for minutes with nothing to do, owes none.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from areal.cards import CardLock
from areal.errors import ArealError, InfraError, Kind
from areal.generation.engine_client import EngineClient
from areal.generation.engine_command import Launch
from areal.observe.waits import ENGINE_HEALTH, WaitRegistry
from areal.processes.core import Budget, BudgetPolicy, RestartsExhausted
from areal.processes.exits import ERROR_FILE, describe, read_error
from areal.processes.family import Command, Family, RemoteFamily

log = logging.getLogger(__name__)

_FIX = "see the engine's own lines in this log"
START_POLL_S = 0.05
HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 5.0  # a loaded machine may be slow; a dead loop is silent for ever
HEALTH_MISSES = 4
HEALTH_DEADLINE_S = HEALTH_MISSES * (HEALTH_TIMEOUT_S + HEALTH_PERIOD_S)
STALL_S = 300.0  # no token for so long, with requests and without a swap: longer than any prefill
STOP_S = 2.0  # between SIGTERM and SIGKILL; nothing runs any more, and stock SGLang looks every 5 s only
RESTARTS = BudgetPolicy(max_restarts=10)
CONTAINER_S = 120.0  # until the container of the engine, which was there before, is there again
HOPELESS = 3  # deaths of an engine that never answered: its command or its model is wrong


class EngineProcess:
    """Keeps one engine alive from `run` until `stop`."""

    def __init__(
        self,
        client: EngineClient,
        command: Callable[[], Launch],
        *,
        on_up: Callable[[], Awaitable[None]],
        on_down: Callable[[str], None],
        stalled_s: Callable[[], float],
        waits: WaitRegistry,
        budget: BudgetPolicy = RESTARTS,
        cards: CardLock | None = None,
    ) -> None:
        """`stalled_s` answers for how long the engine has owed a token. With `cards`, which it has by turns, an engine
        is started after `allow` only, and holds them as long as it lives.
        """
        self._client = client
        self._command = command
        self._on_up = on_up
        self._on_down = on_down
        self._stalled_s = stalled_s
        self._waits = waits
        self._budget = Budget(budget)
        self._family: Family | RemoteFamily | None = None
        self._cards = cards
        self._allowed = asyncio.Event()
        if cards is None:
            self._allowed.set()
        self._ended_by_us = False
        self._stopping = False
        self._answered = False
        self._last_words: ArealError | None = None  # the error that the engine ended with
        self.starts = 0
        self.last_reason = ""

    @property
    def pid(self) -> int | None:
        """Of the living engine."""
        return self._family.pid if self._family is not None else None

    def allow(self) -> None:
        """The cards are the engine's: one that isn't there is started."""
        self._allowed.set()

    async def forbid(self, *, end: bool) -> None:
        """The cards are others': one that ends isn't started again, and a living one is ended where asked."""
        self._allowed.clear()
        if end and self._family is not None:
            self._ended_by_us = True
            await self._end()

    async def run(self) -> None:
        """Start the engine, again and again. Raises InfraError when the budget is spent, and the engine's own error
        when it ended with one before it ever answered: starting it again would not help.
        """
        while not self._stopping:
            await self._allowed.wait()
            self.last_reason = await self._once()
            if self._stopping:
                return
            if self._ended_by_us:
                self._ended_by_us = False
                continue
            if not self._answered and self._last_words is not None and self._last_words.kind is not Kind.INFRA:
                raise self._last_words
            granted = self._budget.ask(time.monotonic(), self.last_reason)
            if isinstance(granted, RestartsExhausted):
                raise InfraError(f"the engine died: {granted.reason}", fix=_FIX)
            if not self._answered and self.starts >= HOPELESS:
                raise InfraError(f"the engine never answered in {self.starts} starts: {self.last_reason}", fix=_FIX)
            log.warning("the engine is started again: %s", self.last_reason)
            await asyncio.sleep(granted.wait_s)

    async def stop(self) -> None:
        """End the engine for good."""
        self._stopping = True
        await self._end()

    async def kill(self) -> None:
        """End the engine's life; `run` starts another one."""
        if self._family is not None:
            await self._family.end()

    async def _once(self) -> str:
        """One life of the engine; returns why it ended."""
        launch = self._command()
        memory = os.memfd_create("engine-error")  # a file in memory: a killed agent leaves none behind
        words = Path(f"/proc/self/fd/{memory}")
        env = {**os.environ, **launch.env, ERROR_FILE: str(words)}
        passed = (memory,) if self._cards is None else (memory, self._cards.descriptor)
        family: Family | RemoteFamily
        if launch.place is None:
            family = Family.start(Command("engine", launch.argv, env, descriptors=passed), output=2)
        else:
            patience_s = CONTAINER_S if self.starts else launch.start_s  # its image may take as long as a model
            try:
                family = await RemoteFamily.start(Command("engine", launch.argv, launch.env), launch.place, patience_s)
            except InfraError:
                os.close(memory)
                raise
        self._family = family
        self.starts += 1
        exited = asyncio.ensure_future(family.wait())
        watching = asyncio.ensure_future(self._watch(launch.start_s))
        try:
            await asyncio.wait((exited, watching), return_when=asyncio.FIRST_COMPLETED)
            reason = watching.result() if watching.done() else f"it ended, {describe(exited.result())}"
            self._last_words = read_error(words)
        finally:
            os.close(memory)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await watching
            await self._end()
            self._family = None
        if not self._stopping:
            self._on_down(reason)
        return reason

    async def _watch(self, start_s: float) -> str:
        """Wait at most `start_s` until the engine answers, then watch it; returns what is wrong with it."""
        began = time.monotonic()
        while not await self._client.healthy(HEALTH_TIMEOUT_S):
            if time.monotonic() - began > start_s:
                return f"it did not answer within {start_s:.0f} s"
            await asyncio.sleep(START_POLL_S)
        log.info("the engine answers after %.1f s", time.monotonic() - began)
        self._answered = True
        await self._on_up()
        while True:
            await asyncio.sleep(HEALTH_PERIOD_S)
            if not await self._answers():
                return f"/health failed {HEALTH_MISSES} times in a row"
            if self._stalled_s() > STALL_S:
                return f"it made no token for {STALL_S:.0f} s although it had requests"

    async def _answers(self) -> bool:
        """Asks until it answers, as often as it may miss: one wait, so that its silence has an age."""
        with self._waits.waiting(ENGINE_HEALTH, "its engine to answer", deadline_s=HEALTH_DEADLINE_S):
            for turn in range(HEALTH_MISSES):
                if turn:
                    await asyncio.sleep(HEALTH_PERIOD_S)
                if await self._client.healthy(HEALTH_TIMEOUT_S):
                    return True
        return False

    async def _end(self) -> None:
        """SIGTERM where it is stopped for good, then SIGKILL to it and everything it started."""
        family = self._family
        if family is None:
            return
        if self._stopping and not family.ended:
            family.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(family.wait(), STOP_S)
        await family.end()


class OwedToken:
    """Asked every second or so."""

    def __init__(self) -> None:
        self._since: float | None = None

    def seconds(self, *, owes: bool, quiet_s: float, now: float) -> float:
        """Seconds for which a token has been owed.

        Args:
            owes: whether requests are with the engine and nothing keeps it from them.
            quiet_s: since its last token.
        """
        if not owes:
            self._since = None
            return 0.0
        if self._since is None:
            self._since = now
        return min(quiet_s, now - self._since)
