"""Runs asyncio code in virtual time: a wait costs nothing, and its order is exact.

For code without real IO: when nothing is ready, the loop's clock jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(AssertionError):
    """Every task waits for something that no timer will bring."""


class _JumpingSelector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise Deadlock("all tasks wait, and no timer is set")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is `now`."""

    def __init__(self, start: float = 1000.0) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self.now = start
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(body: Coroutine[Any, Any, T], *, start: float = 1000.0) -> T:
    """`asyncio.run` in virtual time."""
    loop = VirtualLoop(start)
    try:
        return loop.run_until_complete(body)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        leftover = asyncio.all_tasks(loop)
        if leftover:
            loop.run_until_complete(asyncio.gather(*leftover, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def now() -> float:
    """The running loop's clock; to inject."""
    return asyncio.get_running_loop().time()


async def until(probe: Callable[[], object], *, limit_s: float = 1000.0, step_s: float = 0.1) -> None:
    """Let time pass until the probe is true."""
    for _ in range(round(limit_s / step_s)):
        if probe():
            return
        await asyncio.sleep(step_s)
    raise AssertionError(f"not within {limit_s} s")
