"""Writes to disk off the event loop, to their end: also a caller that is cancelled waits until a write is over.

A thread can't be stopped. Waiting for it means that nobody closes its file under it, or starts a successor beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec

from areal.rollout.controller.kept import KeptFile, RestoredState

log = logging.getLogger(__name__)

P = ParamSpec("P")


async def write_to_the_end(write: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
    """Call `write` in a thread. Raises what it raises; of a cancelled caller that is logged."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, *arguments, **named))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.error("the last write failed: %s", error)
        raise


class KeptWriter:
    """The task that writes the kept file. Ends by FencedError when a newer controller began."""

    def __init__(self, file: KeptFile) -> None:
        self.kept = file.kept  # what the controller starts from
        self._file = file
        self._waiting: asyncio.Queue[RestoredState] = asyncio.Queue()

    def submit(self, kept: RestoredState) -> None:
        """Write this next."""
        self._waiting.put_nowait(kept)

    async def run(self, written: Callable[[], None]) -> None:
        """Write for ever; `written` is called after each."""
        while True:
            kept = await self._waiting.get()
            await write_to_the_end(self._file.write, kept)
            written()
