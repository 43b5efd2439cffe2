"""Pending calls: each is answered by its deadline, or when it is cancelled by request id, or when the service closes.

Owns deadlines and cancellation, and what a refusal turns into.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from areal.errors import DataError

from areal_judge.judge.dispatch.values import RefusedError, Ticket
from areal_judge.judge.values import Status

A = TypeVar("A")


@dataclass(eq=False)
class _PendingCall:
    """One pending call."""

    scope: asyncio.Timeout
    ended_by: tuple[Status, str] | None = None  # what ended it before its deadline


class PendingCalls:
    """All pending calls. Lives on one event loop."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        """`wall`: the clock of tickets' deadlines."""
        self._wall = wall
        self._named: dict[tuple[str, str], set[_PendingCall]] = {}
        self._calls: set[_PendingCall] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def answered(
        self, ticket: Ticket, answer: Callable[[], Awaitable[A]], failed: Callable[[Status, str, float], A]
    ) -> A:
        """The answer, or what stands for it: by the deadline, after a cancellation, for a refusal."""
        left_s = None if ticket.deadline is None else ticket.deadline - self._wall()
        if left_s is not None and (left_s <= 0 or math.isnan(left_s)):
            return failed(Status.DEADLINE_EXCEEDED, "its deadline had passed when it came", 0.0)
        scope = asyncio.timeout(left_s)
        call = _PendingCall(scope)
        self._calls.add(call)
        self._idle.clear()
        name = (ticket.tenant, ticket.request_id) if ticket.request_id else None
        if name is not None:
            self._named.setdefault(name, set()).add(call)
        try:
            async with scope:
                return await answer()
        except TimeoutError:
            if not scope.expired():
                raise
            if call.ended_by is not None:
                return failed(*call.ended_by, 0.0)
            return failed(Status.DEADLINE_EXCEEDED, "its deadline passed before there was a judgement", 0.0)
        except RefusedError as refused:
            return failed(refused.status, refused.message, refused.retry_after_s)
        except DataError as error:
            return failed(Status.GOLD_ERROR, str(error), 0.0)
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._idle.set()
            if name is not None:
                self._left(name, call)

    def cancel(self, tenant: str, request_id: str) -> bool:
        """Ends the calls of that name with CANCELLED; whether there were any."""
        calls = self._named.get((tenant, request_id), set())
        for call in calls:
            _end(call, Status.CANCELLED, "its caller cancelled it")
        return bool(calls)

    async def close(self) -> None:
        """Ends all calls and waits until each has its answer."""
        for call in self._calls:
            _end(call, Status.SANDBOX_ERROR, "the reward service is stopping")
        await self._idle.wait()

    def _left(self, name: tuple[str, str], call: _PendingCall) -> None:
        self._named[name].discard(call)
        if not self._named[name]:
            del self._named[name]


def _end(call: _PendingCall, status: Status, message: str) -> None:
    if call.ended_by is None:
        call.ended_by = (status, message)
        call.scope.reschedule(asyncio.get_running_loop().time())
