"""The engine as a child process: started, watched, started again under a budget.

Owns the process. Tells its owner when the engine answers and when it is gone, with the reason. An engine is replaced
when it exits, when `/health` stays silent, or when it makes no token for long while it should.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from areal.errors import ArealError, InfraError, Kind
from areal.generation.engine_client import EngineClient
from areal.generation.engine_command import Launch
from areal.last_words import ERROR_FILE, read_error
from areal.observe.waits import ENGINE_HEALTH, WaitRegistry

log = logging.getLogger(__name__)

START_POLL_S = 0.05
HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 5.0  # a loaded machine may be slow; a dead loop is silent for ever
HEALTH_MISSES = 4
HEALTH_DEADLINE_S = HEALTH_MISSES * (HEALTH_TIMEOUT_S + HEALTH_PERIOD_S)
STALL_S = 300.0  # no token for so long, with requests and without a swap: longer than any prefill
STOP_S = 2.0  # between SIGTERM and SIGKILL; nothing runs any more, and stock SGLang looks every 5 s only
HOPELESS = 3  # deaths of an engine that never answered: its command or its model is wrong


@dataclass(frozen=True)
class RestartBudget:
    """How often an engine may die."""

    restarts: int = 10
    window_s: float = 600.0
    start_deadline_s: float = 600.0  # large models load for minutes


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
        budget: RestartBudget | None = None,
    ) -> None:
        """`stalled_s` answers for how long the engine has owed a token."""
        self._client = client
        self._command = command
        self._on_up = on_up
        self._on_down = on_down
        self._stalled_s = stalled_s
        self._waits = waits
        self._budget = budget or RestartBudget()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self._answered = False
        self._last_words: ArealError | None = None  # the error that the engine ended with
        self.starts = 0
        self.last_reason = ""

    @property
    def pid(self) -> int | None:
        """Of the living engine."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def run(self) -> None:
        """Start the engine, again and again. Raises InfraError when the budget is spent, and the engine's own error
        when it ended with one before it ever answered: starting it again would not help.
        """
        deaths: deque[float] = deque()
        while not self._stopping:
            self.last_reason = await self._once()
            if self._stopping:
                return
            if not self._answered and self._last_words is not None and self._last_words.kind is not Kind.INFRA:
                raise self._last_words
            now = time.monotonic()
            deaths.append(now)
            while deaths[0] < now - self._budget.window_s:
                deaths.popleft()
            if len(deaths) > self._budget.restarts or (not self._answered and len(deaths) >= HOPELESS):
                raise InfraError(
                    f"the engine died {len(deaths)} times in {self._budget.window_s:.0f} s; now {self.last_reason}",
                    fix="see the engine's own lines in this log",
                )
            log.warning("the engine is started again: %s", self.last_reason)
            await asyncio.sleep(min(0.1 * 2 ** (len(deaths) - 1), 5.0))

    async def stop(self) -> None:
        """End the engine for good."""
        self._stopping = True
        await self._end()

    async def _once(self) -> str:
        """One life of the engine; returns why it ended."""
        launch = self._command()
        memory = os.memfd_create("engine-error")  # a file in memory: a killed agent leaves none behind
        words = Path(f"/proc/self/fd/{memory}")
        argv = [sys.executable, "-m", "areal.generation.lifeline", str(os.getpid()), *launch.argv]
        # A process group of its own: all of a multi-process engine can be ended at once.
        self._process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, **launch.env, ERROR_FILE: str(words)},
            process_group=0,
            pass_fds=(memory,),
            stdin=asyncio.subprocess.DEVNULL,
        )
        self.starts += 1
        exited = asyncio.ensure_future(self._process.wait())
        watching = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait((exited, watching), return_when=asyncio.FIRST_COMPLETED)
            reason = watching.result() if watching.done() else f"it exited with {_exit_words(exited.result())}"
            self._last_words = read_error(words)
        finally:
            os.close(memory)
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await watching
            await self._end()
        if not self._stopping:
            self._on_down(reason)
        return reason

    async def _watch(self) -> str:
        """Wait until the engine answers, then watch it; returns what is wrong with it."""
        began = time.monotonic()
        while not await self._client.healthy(HEALTH_TIMEOUT_S):
            if time.monotonic() - began > self._budget.start_deadline_s:
                return f"it did not answer within {self._budget.start_deadline_s:.0f} s"
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
        """SIGTERM, then SIGKILL, to the whole group."""
        process = self._process
        if process is None:
            return
        if process.returncode is None and self._stopping:
            _signal(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
