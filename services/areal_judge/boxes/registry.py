"""Lease registry of boxes: made once for an id, adopted, kept while their holder is there, ended, remembered.

Owns which boxes there are, and when each ends: at its lease's end, a grace after its holder's stream broke, when it is
closed, when its program ended it, or with the service. A box belongs to this registry and not to the call that asked
for it: a caller that went away finds it again by its id.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from areal.errors import ArealError, DataError, InfraError
from areal.values.boxes import BoxEnd, BoxEndCause, BoxEndedError, BoxLanguage, CommandResult

from areal_judge.boxes.box import MOST_FRAME_BYTES, BoxRequest, DriverFalsity, DriverGone, DriverLine, end_of, run_of
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.host.streams import RunSlots

log = logging.getLogger(__name__)

_REMEMBERED = 20_000  # ends, for calls that come later
_GONE_S = 60.0  # for the sandbox to say how: a fault of the machine must not become the program's
_FALSIFIED_S = 5.0
T = TypeVar("T")


@dataclass(frozen=True)
class BoxBounds:
    """How many, and how long."""

    boxes: int = 64  # at once
    starting: int = 8  # of them; starts are what costs a processor
    lease_s: float = 6 * 3600.0  # the longest
    grace_s: float = 20.0  # for a holder that lost its connection


@dataclass(eq=False)
class _RegistryBox:
    request: BoxRequest
    holder: str
    expires: float  # by the loop's clock
    line: asyncio.Future[DriverLine]
    ended: asyncio.Future[BoxEnd]
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    cause: BoxEnd | None = None  # of an end that was asked for
    calls: dict[int, asyncio.Task[CommandResult]] = field(default_factory=dict)


class BoxRegistry:
    """The boxes of one service. Lives on one event loop; `stop` ends all of them."""

    def __init__(self, sandbox: Sandbox, bounds: BoxBounds) -> None:
        self._sandbox = sandbox
        self.bounds = bounds
        self._boxes: dict[str, _RegistryBox] = {}
        self._ends: OrderedDict[str, BoxEnd] = OrderedDict()
        self._holders: Counter[str] = Counter()  # open streams of each
        self._room = RunSlots(bounds.boxes)
        self._starting = asyncio.Semaphore(bounds.starting)
        self._stopping = False
        self.created = 0
        self.ends: Counter[BoxEndCause] = Counter()

    @property
    def live(self) -> int:
        """Boxes that run or are being started."""
        return len(self._boxes)

    @property
    def starting(self) -> int:
        """Boxes that wait for room or are being started."""
        return sum(not box.line.done() for box in self._boxes.values())

    # ---- lives

    async def create(self, request: BoxRequest, holder: str, lease_s: float) -> bool:
        """Makes the box, or adopts the one of this id, and returns once it runs; whether it is new.

        Raises:
            DataError: the id has another content.
            BoxEndedError: the box of this id has ended; another needs another id.
            ConfigError: this machine can't run boxes.
        """
        box, new = self._boxes.get(request.id), False
        if box is None:
            if (end := self._ends.get(request.id)) is not None:
                raise BoxEndedError(request.id, end)
            if self._stopping:
                raise BoxEndedError(request.id, BoxEnd(BoxEndCause.STOPPED, "the service is stopping"))
            box, new = self._begin(request), True
        elif box.request != request:
            raise DataError(f"box {request.id} is there with other limits or files", fix="use another id")
        box.holder = holder
        self._lease(box, lease_s)
        await self._running(box)
        return new

    def _begin(self, request: BoxRequest) -> _RegistryBox:
        loop = asyncio.get_running_loop()
        box = _RegistryBox(request, "", loop.time(), loop.create_future(), loop.create_future())
        self._boxes[request.id] = box
        self.created += 1
        box.task = loop.create_task(self._live(box))
        return box

    async def _live(self, box: _RegistryBox) -> None:
        end = BoxEnd(BoxEndCause.INFRA, "the box was lost")
        try:
            async with self._room.held():
                end = await self._in_cell(box)
        except asyncio.CancelledError:
            end = box.cause or end
        except InfraError as error:
            end = box.cause or BoxEnd(BoxEndCause.INFRA, error.message)
        except ArealError as error:
            if not box.line.done():
                box.line.set_exception(error)
            end = box.cause or BoxEnd(BoxEndCause.CLOSED, error.message)
        except Exception as error:
            log.exception("box %s failed", box.request.id)
            end = BoxEnd(BoxEndCause.INFRA, f"{type(error).__name__}: {error}")
        finally:
            self._bury(box, end)

    async def _in_cell(self, box: _RegistryBox) -> BoxEnd:
        run = run_of(box.request, self.bounds.lease_s)
        async with contextlib.AsyncExitStack() as stack:
            async with self._starting:
                session = await stack.enter_async_context(self._sandbox.session(run, MOST_FRAME_BYTES))
            line = DriverLine(session)
            box.line.set_result(line)
            ended = await session.over()
        return box.cause or end_of(ended, asked=line.asked)

    def _bury(self, box: _RegistryBox, end: BoxEnd) -> None:
        name = box.request.id
        if box.timer is not None:
            box.timer.cancel()
        for call in box.calls.values():
            call.cancel()
        del self._boxes[name]
        self._ends[name] = end
        while len(self._ends) > _REMEMBERED:
            self._ends.popitem(last=False)
        self.ends[end.cause] += 1
        box.ended.set_result(end)

    def _end(self, box: _RegistryBox, end: BoxEnd) -> None:
        if box.cause is None and not box.ended.done():
            box.cause = end
            assert box.task is not None
            box.task.cancel()

    async def close(self, name: str) -> BoxEnd:
        """Ends a box; returns when nothing of it is left."""
        box = self._boxes.get(name)
        if box is None:
            return self._ends.get(name) or BoxEnd(BoxEndCause.UNKNOWN, "no such box is known here")
        self._end(box, BoxEnd(BoxEndCause.CLOSED, "closed"))
        return await asyncio.shield(box.ended)

    async def stop(self) -> None:
        """Ends all of them."""
        self._stopping = True
        boxes = list(self._boxes.values())
        for box in boxes:
            self._end(box, BoxEnd(BoxEndCause.STOPPED, "the service stopped"))
        await asyncio.gather(*(box.ended for box in boxes))

    # ---- leases

    def renew(self, name: str, lease_s: float) -> float:
        """Moves the end of a lease; the seconds that are left. Raises BoxEndedError."""
        return self._lease(self._box(name), lease_s)

    def state(self, name: str) -> tuple[float, int]:
        """Seconds until a box's lease ends, and the number of its last command. Raises BoxEndedError."""
        box = self._box(name)
        return max(0.0, box.expires - asyncio.get_running_loop().time()), max(box.calls, default=0)

    def _lease(self, box: _RegistryBox, lease_s: float) -> float:
        lease_s = min(lease_s, self.bounds.lease_s)
        box.expires = asyncio.get_running_loop().time() + lease_s
        self._watch(box)
        return lease_s

    def _watch(self, box: _RegistryBox) -> None:
        """Has the reaper look again when the box should end as things stand."""
        loop = asyncio.get_running_loop()
        if box.timer is not None:
            box.timer.cancel()
        left = box.expires - loop.time()
        if box.holder and not self._holders[box.holder] and self.bounds.grace_s < left:
            end = BoxEnd(BoxEndCause.DISCONNECTED, f"its holder was not there for {self.bounds.grace_s:g} s")
            left = self.bounds.grace_s
        else:
            end = BoxEnd(BoxEndCause.EXPIRED, "its lease ended")
        box.timer = loop.call_later(left, self._end, box, end)

    @contextlib.contextmanager
    def held(self, holder: str) -> Iterator[None]:
        """While this lasts, the holder is there: its boxes end with their leases only."""
        self._holders[holder] += 1
        self._look_at(holder)
        try:
            yield
        finally:
            self._holders[holder] -= 1
            if not self._holders[holder]:
                del self._holders[holder]
            self._look_at(holder)

    def _look_at(self, holder: str) -> None:
        for box in self._boxes.values():
            if box.holder == holder:
                self._watch(box)

    def boxes_of(self, holder: str) -> int:
        """How many boxes a holder has."""
        return sum(box.holder == holder for box in self._boxes.values())

    # ---- commands

    async def run(
        self, name: str, call: int, language: BoxLanguage, source: str, timeout_s: float, output_bytes: int
    ) -> CommandResult:
        """Runs a command. The same call again joins it, or has the same answer. Raises BoxEndedError, DataError."""
        box = self._box(name)
        if call not in box.calls:
            if box.calls and call < max(box.calls):
                raise DataError(f"call {call} of box {name} is over and forgotten", fix="number calls upwards")
            work = self._with(box, lambda line: line.run(language, source, timeout_s, output_bytes))
            for old in [number for number, task in box.calls.items() if task.done()]:
                del box.calls[old]
            box.calls[call] = asyncio.get_running_loop().create_task(work)
        task = box.calls[call]
        await asyncio.wait([task])
        if task.cancelled():
            raise BoxEndedError(name, await asyncio.shield(box.ended))
        return task.result()

    async def read(self, name: str, path: str, most_bytes: int) -> tuple[bytes, str]:
        """A file of a box, or why there is none. Raises BoxEndedError."""
        return await self._with(self._box(name), lambda line: line.read(path, most_bytes))

    async def write(self, name: str, path: str, data: bytes, *, executable: bool) -> str:
        """Writes a file of a box; why it could not be, or nothing. Raises BoxEndedError."""
        return await self._with(self._box(name), lambda line: line.write(path, data, executable=executable))

    async def _with(self, box: _RegistryBox, ask: Callable[[DriverLine], Awaitable[T]]) -> T:
        line = await self._running(box)
        work = asyncio.ensure_future(ask(line))
        try:
            await _either(work, box.ended)
            if work.done() and not isinstance(work.exception(), DriverFalsity):
                return work.result()
            if work.done() and not box.ended.done():
                # What serves the box is gone or lies. Gone: the sandbox says how; else its word would be the program's.
                patience_s = _GONE_S if isinstance(work.exception(), DriverGone) else _FALSIFIED_S
                await asyncio.wait([box.ended], timeout=patience_s)
                self._end(box, BoxEnd(BoxEndCause.PROGRAM, str(work.exception())))
            raise BoxEndedError(box.request.id, await asyncio.shield(box.ended))
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _running(self, box: _RegistryBox) -> DriverLine:
        await _either(box.line, box.ended)
        if box.line.done() and (error := box.line.exception()) is not None:
            raise error
        if box.ended.done():
            raise BoxEndedError(box.request.id, box.ended.result())
        return box.line.result()

    def _box(self, name: str) -> _RegistryBox:
        box = self._boxes.get(name)
        if box is None:
            raise BoxEndedError(name, self._ends.get(name) or BoxEnd(BoxEndCause.UNKNOWN, "no such box is known here"))
        return box


async def _either(first: asyncio.Future[Any], second: asyncio.Future[Any]) -> None:
    """Returns when one of the two is done; a cancelled wait cancels neither."""
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
