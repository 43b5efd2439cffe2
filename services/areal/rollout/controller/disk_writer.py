"""Writes to disk off the event loop, to their end: also a caller that is cancelled waits until a write is over.

A thread can't be stopped. Waiting for it means that nobody closes its file under it, or starts a successor beside it.
Of the journal, to which nobody else appends, a batch of entries shares its fsyncs, then the carrier is told. An entry
counts only when no newer controller began before it was on disk: that one has read the journal without it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec

from areal.ledger.journal import Journal, Tombstone
from areal.rollout.controller.carrier import Carrier, Entry
from areal.rollout.controller.decisions import (
    JournalBatch,
    JournalPools,
    JournalRounds,
    JournalTombstone,
    JournalTrainer,
)
from areal.rollout.controller.kept import KeptFile, RestoredState, check_alive

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


_DETAIL_CHARS = 4000  # of a traceback: its end says what happened, and the journal is never shortened


def write_entries(
    journal: Journal, entries: Sequence[Entry], fence: int, newest: Callable[[], int], ahead: int | None = None
) -> None:
    """On disk, in order, and valid, when it returns. `newest` answers the newest controller's fence; `ahead` is how far
    generation may be ahead of training, for the audit."""
    tombstones: list[Tombstone] = []
    for entry in entries:
        if isinstance(entry, JournalTombstone):
            detail = entry.detail[-_DETAIL_CHARS:]
            tombstones.append(Tombstone(entry.group, entry.reason, fence, detail, entry.passes, entry.tries))
            continue
        journal.append_tombstones(tombstones)
        tombstones = []
        if isinstance(entry, JournalBatch):
            journal.append_batch(entry.step, entry.groups, entry.measured, ahead)
        elif isinstance(entry, JournalTrainer):
            journal.append_trainer(entry.fence, entry.step)
        elif isinstance(entry, JournalPools):
            journal.append_pools(entry.committed, entry.from_group)
        elif isinstance(entry, JournalRounds):
            journal.append_rounds(entry.first, entry.places)
        else:
            journal.append_short(entry.group, entry.indices)
    journal.append_tombstones(tombstones)
    check_alive(fence, newest())


class JournalWriter:
    """The task that writes, and tells `written` what is on disk. Ends by FencedError when a newer controller began."""

    def __init__(
        self, journal: Journal, fence: int, newest: Callable[[], int], written: Callable[[Sequence[Entry]], None]
    ) -> None:
        self._journal = journal
        self._fence = fence
        self._newest = newest
        self._written = written
        self._batches: asyncio.Queue[Sequence[Entry]] = asyncio.Queue()

    def submit(self, entries: Sequence[Entry]) -> None:
        """Write these next."""
        self._batches.put_nowait(entries)

    async def run(self, carrier: Carrier) -> None:
        """Write for ever."""
        while True:
            entries = await self._batches.get()
            await write_to_the_end(write_entries, self._journal, entries, self._fence, self._newest, carrier.ahead)
            self._written(entries)
            carrier.journalled()
