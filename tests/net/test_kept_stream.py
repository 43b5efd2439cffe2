"""The stream that is kept open, against peers that misbehave, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import pairwise
from typing import Any

import grpc
from areal.net.heartbeat import Backoff
from areal.net.kept_stream import SILENCE_S, KeptStream, StreamLoss
from areal.observe.waits import WaitRegistry
from support.virtual_time import now, run, until


def _error(code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "of the peer")


class Call:
    """One stream at the peer: what it heard, and what it answers by `say`, `close` or `fail`."""

    def __init__(self, messages: AsyncIterator[str], *, swallows: bool, reads: bool) -> None:
        self.heard: list[str] = []
        self.half_closed = False
        self.cancelled = False
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._swallows = swallows
        self._messages = messages
        self._consuming = asyncio.create_task(self._consume()) if reads else None

    async def _consume(self) -> None:
        async for message in self._messages:
            self.heard.append(message)
            self._answers.put_nowait(f"to {message}")
        self.half_closed = True
        self._answers.put_nowait(grpc.aio.EOF)

    async def read(self) -> Any:
        try:
            answer = await self._answers.get()
        except asyncio.CancelledError:
            if self._swallows:
                raise _error(grpc.StatusCode.INTERNAL) from None
            raise
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def say(self, answer: Any) -> None:
        self._answers.put_nowait(answer)

    def cancel(self) -> None:
        self.cancelled = True
        if self._consuming is not None:
            self._consuming.cancel()
        self._answers.put_nowait(asyncio.CancelledError())


class Peer:
    """Takes connections; each attribute says how the next ones go."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.attempts: list[float] = []
        self.up = asyncio.Event()
        self.up.set()
        self.swallows = False
        self.reads = True

    def dial(self, address: str, token: str) -> Any:
        self.attempts.append(now())
        return self

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def channel_ready(self) -> None:
        await self.up.wait()

    def open(self, messages: AsyncIterator[str]) -> Call:
        self.calls.append(Call(messages, swallows=self.swallows, reads=self.reads))
        return self.calls[-1]


class Scene:
    """A stream to a peer, and what its owner heard and lost."""

    def __init__(self, **fields: Any) -> None:
        self.peer = Peer()
        self.heard: list[str] = []
        self.lost: list[StreamLoss] = []
        self.waits = WaitRegistry("us", clock=now)
        self.reports = 0
        fields = {"hello": lambda: ["hello"], "on_lost": self.lost.append, **fields}
        self.stream: KeptStream[str, str] = KeptStream(
            "peer:1",
            "token",
            method=lambda channel: channel.open,  # type: ignore[attr-defined]
            report=self.report,
            on_message=self.heard.append,
            backoff=Backoff(0.1, 1.0, uniform=lambda _low, high: high),
            what="controller",
            waits=self.waits,
            dial=self.peer.dial,
            **fields,
        )
        self.stream.start()

    def report(self) -> str:
        self.reports += 1
        return f"report {self.reports}"


def virtual(body: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test, in virtual time."""

    def in_virtual_time() -> None:
        run(body())

    in_virtual_time.__name__ = body.__name__
    return in_virtual_time


@virtual
async def test_a_stream_begins_with_hello_and_beats() -> None:
    scene = Scene()
    await asyncio.sleep(1.2)
    assert scene.peer.calls[0].heard == ["hello", "report 1", "report 2"]
    assert scene.heard[0] == "to hello"
    assert scene.stream.connected
    await scene.stream.close()


@virtual
async def test_a_burst_of_news_is_one_report_at_once() -> None:
    scene = Scene()
    await asyncio.sleep(0.1)
    for _ in range(10):
        scene.stream.wake()
    await asyncio.sleep(0.01)
    assert scene.peer.calls[0].heard == ["hello", "report 1"]
    await scene.stream.close()


@virtual
async def test_a_peer_that_hangs_is_left() -> None:
    scene = Scene()
    scene.peer.reads = False
    await until(lambda: scene.lost)
    assert scene.lost == [StreamLoss(f"no message for {SILENCE_S} s")]
    assert scene.peer.calls[0].cancelled
    scene.peer.reads = True
    await until(lambda: scene.heard)
    assert scene.peer.calls[1].heard[0] == "hello"
    await scene.stream.close()


@virtual
async def test_a_peer_may_be_silent_where_it_has_nothing_to_say() -> None:
    scene = Scene(silence_s=None, period_s=None, hello=list)
    await asyncio.sleep(1000.0)
    assert scene.stream.connected
    assert scene.peer.calls[0].heard == []
    await scene.stream.close()


@virtual
async def test_a_peer_that_ends_streams_is_tried_with_longer_and_longer_pauses() -> None:
    scene = Scene()

    def refuse(messages: AsyncIterator[str]) -> Call:
        call = Call(messages, swallows=False, reads=False)
        call.say(grpc.aio.EOF)
        return call

    scene.peer.open = refuse  # type: ignore[method-assign]
    await until(lambda: len(scene.peer.attempts) == 6)
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(scene.peer.attempts)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0]
    await scene.stream.close()


@virtual
async def test_a_stream_that_lived_is_opened_again_at_once() -> None:
    scene = Scene()
    for _ in range(4):
        await asyncio.sleep(2.0)
        scene.peer.calls[-1].say(_error())
    await asyncio.sleep(0.15)
    assert len(scene.peer.calls) == 5
    await scene.stream.close()


@virtual
async def test_a_restarted_peer_is_dialled_anew_and_waited_for_under_a_name() -> None:
    scene = Scene()
    await asyncio.sleep(0.6)
    scene.peer.up.clear()
    scene.peer.calls[0].say(_error())
    await asyncio.sleep(30.0)
    assert [(wait.name, wait.waits_for) for wait in scene.waits.list()] == [("controller", "peer:1")]
    assert len(scene.peer.attempts) == 2, "a new channel resolves the address again: the peer may have another port"
    scene.peer.up.set()
    await until(lambda: len(scene.peer.calls) == 2 and scene.peer.calls[1].heard)
    assert scene.peer.calls[1].heard[0] == "hello"
    assert scene.waits.list() == []
    await scene.stream.close()


@virtual
async def test_a_cancellation_that_a_call_swallows_still_ends_the_stream() -> None:
    """The core raises an error of its own when a call is cancelled while its peer goes."""
    scene = Scene()
    scene.peer.swallows = True
    await until(lambda: scene.stream.connected)
    async with asyncio.timeout(1.0):
        await scene.stream.close()
    assert len(scene.peer.calls) == 1


@virtual
async def test_a_stream_that_ended_takes_none_of_the_next_ones_messages() -> None:
    scene = Scene(period_s=None)
    await asyncio.sleep(0.1)
    held = scene.peer.calls[0]
    held.cancel = lambda: None  # type: ignore[method-assign]  # gRPC still holds the generator
    held.say(_error())
    await until(lambda: len(scene.peer.calls) == 2)
    scene.stream.wake()
    await asyncio.sleep(1.0)
    assert held.heard == ["hello"]
    assert scene.peer.calls[1].heard == ["hello", "report 1"]
    await scene.stream.close()


@virtual
async def test_abandoning_ends_the_stream_at_once_and_opens_another() -> None:
    scene = Scene()
    await until(lambda: scene.stream.connected)
    scene.stream.abandon("it is of no use")
    assert not scene.stream.connected
    assert scene.lost == [StreamLoss("it is of no use")]
    await until(lambda: len(scene.peer.calls) == 2)
    assert len(scene.lost) == 1
    await scene.stream.close()


@virtual
async def test_the_last_report_is_read_before_the_stream_ends() -> None:
    scene = Scene()
    await asyncio.sleep(0.1)
    assert await scene.stream.finish(5.0)
    assert scene.peer.calls[0].heard[-1] == f"report {scene.reports}"
    assert scene.peer.calls[0].half_closed
    assert len(scene.peer.attempts) == 1
    await scene.stream.close()


@virtual
async def test_a_last_report_that_nobody_reads_is_said() -> None:
    scene = Scene()
    await asyncio.sleep(0.1)
    scene.peer.up.clear()
    scene.peer.calls[0].say(_error())
    assert not await scene.stream.finish(3.0)
    scene.peer.up.set()
    assert await scene.stream.finish(3.0), "it is said on the next stream"
    await scene.stream.close()


@virtual
async def test_what_greets_a_connection_comes_before_its_stream_and_may_end_it_for_good() -> None:
    order: list[str] = []
    fenced = _error(grpc.StatusCode.ABORTED)

    async def greet(_channel: Any) -> None:
        order.append("greeted")
        if len(order) == 3:
            raise fenced

    def hello() -> list[str]:
        order.append("hello")
        return ["hello"]

    def note(lost: StreamLoss) -> None:
        if lost.error is fenced:
            scene.stream.end()

    scene = Scene(greet=greet, hello=hello, on_lost=note)
    await asyncio.sleep(0.6)
    scene.peer.calls[0].say(_error())
    await asyncio.sleep(60.0)
    assert order == ["greeted", "hello", "greeted"]
    assert len(scene.peer.attempts) == 2
    await scene.stream.close()
