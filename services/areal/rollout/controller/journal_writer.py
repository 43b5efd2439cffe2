"""Writes the journal off the event loop: what waits is fsynced together, then the core is told.

Owns the journal; nobody else appends to it. Entries keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from areal.ledger.journal import Journal, Tombstone
from areal.rollout.controller.decisions import CloseGroup, JournalCursor, JournalTombstone
from areal.rollout.controller.ledger_link import Post

Entry: TypeAlias = JournalTombstone | JournalCursor | CloseGroup

_DETAIL_CHARS = 4000  # of a traceback: its end says what happened, and the journal is never shortened


class JournalWriter:
    """A queue of entries and the task that writes them. A short close is journalled before it goes to the ledger."""

    def __init__(self, journal: Journal, fence: int, post: Post, close: Callable[[CloseGroup], None]) -> None:
        self._journal = journal
        self._fence = fence
        self._post = post
        self._close = close
        self._queue: asyncio.Queue[Entry] = asyncio.Queue()

    def submit(self, entry: Entry) -> None:
        """Queue an entry."""
        self._queue.put_nowait(entry)

    async def run(self) -> None:
        """Write for ever."""
        while True:
            entries = [await self._queue.get()]
            while not self._queue.empty():
                entries.append(self._queue.get_nowait())
            await asyncio.to_thread(self._write, entries)
            for entry in entries:
                self._tell(entry)

    def _write(self, entries: list[Entry]) -> None:
        tombstones: list[Tombstone] = []
        for entry in entries:
            if isinstance(entry, JournalTombstone):
                detail = entry.detail[-_DETAIL_CHARS:]
                tombstones.append(Tombstone(entry.group, entry.reason, self._fence, detail))
                continue
            self._journal.append_tombstones(tombstones)
            tombstones = []
            if isinstance(entry, JournalCursor):
                self._journal.append_cursor(entry.fence, entry.next_group, entry.step)
            else:
                self._journal.append_short(entry.group, entry.indices)
        self._journal.append_tombstones(tombstones)

    def _tell(self, entry: Entry) -> None:
        match entry:
            case JournalTombstone(group, reason):
                self._post(lambda core, now: core.journalled(group, reason))
            case JournalCursor(ticket):
                self._post(lambda core, now: core.cursor_journalled(ticket))
            case CloseGroup():
                self._close(entry)
