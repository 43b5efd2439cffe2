"""Keeps the counts of ended episodes on disk while a controller runs, so that its successor goes on from them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from areal.record.episode_ends import write_ends
from areal.rollout.controller.tally import Tally

log = logging.getLogger(__name__)

_PERIOD_S = 1.0  # of what a crash forgets


class EndsKeeper:
    """Writes the tally's counts of one controller's fence."""

    def __init__(self, directory: Path, fence: int, tally: Tally) -> None:
        self._directory = directory
        self._fence = fence
        self._tally = tally
        self._written: dict[str, int] = {}

    async def run(self) -> None:
        """Write the counts of earlier controllers at once and what changed once a second, until cancelled."""
        while True:
            ends = dict(self._tally.ends)
            if ends != self._written:
                self._written = ends
                await asyncio.to_thread(self._write, ends)
            await asyncio.sleep(_PERIOD_S)

    def close(self) -> None:
        """Write the last counts."""
        self._write(dict(self._tally.ends))

    def _write(self, ends: dict[str, int]) -> None:
        try:
            write_ends(self._directory, self._fence, ends)
        except OSError as error:
            log.warning("the counts of ended episodes were not kept: %s", error)
