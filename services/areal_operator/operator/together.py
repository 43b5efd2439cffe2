"""Bounded concurrency: independent requests of one reconcile, some at a time.

All of them come to their end before the first error is raised: nothing of a reconcile goes on when it is over.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 8  # a job's children take a round trip or two; more would only queue before those of other jobs


async def together(work: Iterable[Awaitable[T]], at_once: int = AT_ONCE) -> list[T]:
    """Their results, in order; the first error in that order, if there is one."""
    places = asyncio.Semaphore(at_once)

    async def one(item: Awaitable[T]) -> T:
        async with places:
            return await item

    done: list[T] = []
    for outcome in await asyncio.gather(*map(one, work), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        done.append(outcome)
    return done
