"""A bidirectional gRPC stream kept open: reconnection with back-off, a silence limit, a last message that arrives.

Owns the connection and the pace of what is sent: `hello` opens every stream, then one `report` each period, or soon
after a `wake`; reports of one burst travel together. Promises that a stream which ended takes nothing of the next one's
messages, that a cancellation ends it even where the call swallows it, and that each attempt resolves the address anew.
It never decides what a message says.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import grpc

from areal.net.channel import connect, raise_if_cancelled
from areal.net.heartbeat import PERIOD_S, Backoff
from areal.observe.waits import WaitRegistry

log = logging.getLogger(__name__)

Up = TypeVar("Up")
Down = TypeVar("Down")

GATHER_S = 0.003  # news of one burst travel together
FIRST_BACKOFF_S = 0.1  # a peer that restarts in place is back within seconds
MAX_BACKOFF_S = 1.0  # a controller that restarted should know its peers within a second
SILENCE_S = 5.0  # a controller answers each half second; one that doesn't for so long hangs
_ENDED = "the peer ended it"


@dataclass(frozen=True)
class StreamLoss:
    """Why a stream ended, and the error that ended it, if one did."""

    why: str
    error: grpc.RpcError | None = None


@dataclass(eq=False)
class _StreamSession:
    """One stream from its attempt to its end. What wakes it never wakes another."""

    news: asyncio.Event
    connected: bool = False
    over: bool = False
    said_last: bool = False


class KeptStream(Generic[Up, Down]):
    """`run` it, or `start` and `close` it. One task owns it; callbacks run there and must not block.

    Args:
        method: the stub's stream of a channel, such as `lambda channel: RolloutStub(channel).Work`.
        report: the next message, or None when there is nothing to say.
        on_message: what the peer says.
        hello: the first messages of every stream.
        greet: called on every new connection before its stream is opened; what it raises ends the attempt.
        on_open: the stream is open.
        on_lost: the stream, or an attempt to open one, ended.
        period_s: the longest time between two reports; None reports after a `wake` only.
        silence_s: a peer that says nothing for so long hangs, and is left; None for a peer that may be silent.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        method: Callable[[grpc.aio.Channel], grpc.aio.StreamStreamMultiCallable[Up, Down]],
        report: Callable[[], Up | None],
        on_message: Callable[[Down], None],
        what: str,
        hello: Callable[[], Sequence[Up]] = tuple,
        greet: Callable[[grpc.aio.Channel], Awaitable[object]] | None = None,
        on_open: Callable[[], None] = lambda: None,
        on_lost: Callable[[StreamLoss], None] = lambda _lost: None,
        period_s: float | None = PERIOD_S,
        silence_s: float | None = SILENCE_S,
        gather_s: float = GATHER_S,
        backoff: Backoff | None = None,
        waits: WaitRegistry | None = None,
        dial: Callable[[str, str], grpc.aio.Channel] = connect,
    ) -> None:
        self._address = address
        self._token = token
        self._method = method
        self._report = report
        self._on_message = on_message
        self._what = what
        self._hello = hello
        self._greet = greet
        self._on_open = on_open
        self._on_lost = on_lost
        self._period_s = period_s
        self._silence_s = silence_s
        self._gather_s = gather_s
        self._backoff = backoff or Backoff(FIRST_BACKOFF_S, MAX_BACKOFF_S)
        self._waits = waits
        self._dial = dial
        self._session = _StreamSession(asyncio.Event())
        self._call: grpc.aio.StreamStreamCall[Up, Down] | None = None
        self._ending = False
        self._finishing = False
        self._finished = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether a stream is open."""
        return self._session.connected

    def start(self) -> None:
        """Begin to connect, in a task of its own."""
        self._task = asyncio.create_task(self.run(), name=f"stream to {self._what}")

    def wake(self) -> None:
        """There is something to report."""
        self._session.news.set()

    def abandon(self, why: str) -> None:
        """End the open stream at once; another one is tried."""
        if self._call is not None:
            self._call.cancel()
        self._lose(self._session, StreamLoss(why))

    def end(self) -> None:
        """End the open stream, if there is one, and try no other: `run` returns."""
        self._ending = True
        if self._call is not None:
            self._call.cancel()

    async def finish(self, timeout_s: float) -> bool:
        """Report what there is to report, as the last message; True when the peer has read it.

        The stream is closed from this side then, and the peer ends it once it has read everything: a stream that is cut
        off may take with it what was sent.
        """
        self._finishing = True
        self.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._finished.wait()
                return True
        return False

    async def close(self) -> None:
        """End what `start` began."""
        self._ending = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._lose(self._session, StreamLoss("closed"))

    async def run(self) -> None:
        """Connect, report, listen; connect again, until it is cancelled, ended or finished."""
        clock = asyncio.get_running_loop().time
        while not self._ending:
            began = clock()
            session = self._session
            lost = await self._stream(session)
            raise_if_cancelled()
            if session.said_last and lost.why is _ENDED:
                self._finished.set()
                return
            self._lose(session, lost)
            if self._ending:
                return
            if clock() - began > self._backoff.longest_s:
                self._backoff.succeeded()
            with self._waiting():
                await asyncio.sleep(self._backoff.failed())

    async def _stream(self, session: _StreamSession) -> StreamLoss:
        """One stream from its attempt to its end; says why it ended."""
        try:
            async with self._dial(self._address, self._token) as channel:
                with self._waiting():
                    await channel.channel_ready()
                    if self._greet is not None:
                        await self._greet(channel)
                if session.over:
                    return StreamLoss("abandoned")
                call = self._call = self._method(channel)(self._messages(session))
                try:
                    session.connected = True
                    self._on_open()
                    return await self._listen(session, call)
                finally:
                    self._call = None
                    with contextlib.suppress(asyncio.CancelledError):
                        call.cancel()
        except TimeoutError:
            return StreamLoss(f"no message for {self._silence_s} s")
        except grpc.RpcError as error:
            known = isinstance(error, grpc.aio.AioRpcError)
            return StreamLoss(f"{error.code().name}: {error.details()}" if known else str(error), error)
        except asyncio.CancelledError:
            raise_if_cancelled()
            return StreamLoss(
                "cancelled by the peer"
            )  # or by `abandon`: grpc raises this when the call alone was cancelled

    async def _listen(self, session: _StreamSession, call: grpc.aio.StreamStreamCall[Up, Down]) -> StreamLoss:
        while True:
            async with asyncio.timeout(self._silence_s):  # wait_for may swallow a cancellation
                message = await call.read()
            if message is grpc.aio.EOF:
                return StreamLoss(_ENDED)
            if session.over:
                return StreamLoss("abandoned")
            self._on_message(cast(Down, message))

    async def _messages(self, session: _StreamSession) -> AsyncIterator[Up]:
        """Messages of this stream. gRPC may hold the generator longer than the stream."""
        if session.over:
            return
        for message in self._hello():
            yield message
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await session.news.wait()
                    await asyncio.sleep(self._gather_s)
            if session.over:
                return
            session.news.clear()
            last = self._finishing
            if (report := self._report()) is not None:
                yield report
            if last:
                session.said_last = True
                return

    def _lose(self, session: _StreamSession, lost: StreamLoss) -> None:
        """End a session, once; what is reported from now on is the next one's."""
        if session.over:
            return
        log.log(logging.WARNING if session.connected else logging.INFO, "no stream to %s: %s", self._what, lost.why)
        session.over = True
        session.connected = False
        session.news.set()  # its generator ends
        self._session = _StreamSession(asyncio.Event())
        if self._finishing:
            self._session.news.set()
        self._on_lost(lost)

    def _waiting(self) -> AbstractContextManager[None]:
        if self._waits is None:
            return contextlib.nullcontext()
        return self._waits.waiting(self._what, self._address)
