"""Condition variable of one event loop: wakes all that wait for the next change, and may be told without a lock."""

import asyncio


class ChangeSignal:
    """`wait` returns at the next `tell` after it was called: look at what has changed, then wait again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Something has changed."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._event.wait()
