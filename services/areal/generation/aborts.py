"""Aborts of requests at the engine, coalesced: all that are asked for while one call is under way are the next call."""

import asyncio
import contextlib

from areal.errors import DataError, InfraError
from areal.generation.engine_client import EngineClient


class Aborts:
    """Asks the engine to end requests, without making the caller wait. Lives on one event loop."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._rids: dict[str, None] = {}
        self._all = False
        self._task: asyncio.Task[None] | None = None

    def one(self, rid: str) -> None:
        """End one request."""
        self._rids[rid] = None
        self._begin()

    def all(self) -> None:
        """End every request."""
        self._rids.clear()
        self._all = True
        self._begin()

    def forget(self) -> None:
        """The engine is gone, and with it all requests."""
        self._rids.clear()
        self._all = False

    async def close(self) -> None:
        """Break off."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send(), name="aborts")

    async def _send(self) -> None:
        while self._rids or self._all:
            rids, every = list(self._rids), self._all
            self.forget()
            with contextlib.suppress(InfraError, DataError):  # an engine that is gone has ended them
                await (self._engine.abort_all() if every else self._engine.abort(rids))
