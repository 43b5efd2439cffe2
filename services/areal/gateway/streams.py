"""The response of a request: waits for its calls, and sends them whole or as server-sent events.

A client that leaves cancels nothing: the answer goes on and waits for the retry. What was sent to the end counts as
delivered. A stream that stands still, while weights are swapped, is kept open by comments.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from areal.gateway.dialects.dialect import Delta, Dialect, DialectReply, Events
from areal.gateway.faults import CallRefusal, broken, over
from areal.gateway.reading import AnswerReader
from areal.gateway.session import CallState, EpisodeCalls, SessionCall

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 10.0  # proxies and clients give up a silent stream after a minute or so
KEEP_ALIVE = b": waiting\n\n"


class StreamedAnswering(Response):
    """Answers one request by its calls."""

    def __init__(
        self,
        dialect: Dialect,
        session: EpisodeCalls,
        reply: DialectReply,
        *,
        stream: bool,
        reader_of: Callable[[SessionCall], AnswerReader],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers=dict(headers))
        self._dialect = dialect
        self._session = session
        self._reply = reply
        self._stream = stream
        self._reader_of = reader_of
        self._extra = dict(headers)
        self._events = dialect.events(reply)
        self._begun = False  # the head of a stream was sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait and send."""
        arrived = False
        try:
            with self._watch(receive) as watch:
                if self._stream:
                    arrived = await self._streamed(watch, scope, receive, send)
                else:
                    arrived = await self._whole(watch, scope, receive, send)
        except (OSError, ClientDisconnect):
            raise  # the client left
        except Exception:
            log.exception("an answer of %s could not be told", self._session.name)
            if self._begun:
                await _send(send, b"".join(self._events.fault(broken())), more=False)
            else:
                await self._refused(broken())(scope, receive, send)
        finally:
            for call in self._reply.calls:
                (self._session.delivered if arrived else self._session.gone)(call)

    @contextlib.contextmanager
    def _watch(self, receive: Receive) -> "Iterator[_Watch]":
        changed = asyncio.Event()
        gone = asyncio.ensure_future(disconnected(receive))
        gone.add_done_callback(lambda _task: changed.set())
        for call in self._reply.calls:
            call.made.watch(changed.set)
        try:
            yield _Watch(changed, gone)
        finally:
            gone.cancel()
            for call in self._reply.calls:
                call.made.leave(changed.set)

    async def _whole(self, watch: "_Watch", scope: Scope, receive: Receive, send: Send) -> bool:
        while any(call.state is CallState.RUNNING for call in self._reply.calls) and not self._session.over:
            if watch.gone:
                return False
            await watch.change(None)
        if (fault := self._fault()) is not None:
            await self._refused(fault)(scope, receive, send)
            return False
        body = orjson.dumps(self._dialect.whole(self._reply))
        await Response(body, headers=self._extra, media_type="application/json")(scope, receive, send)
        return not watch.gone

    async def _streamed(self, watch: "_Watch", scope: Scope, receive: Receive, send: Send) -> bool:
        patient = True
        while patient and not self._session.over:  # an early fault has its status
            if any(call.made or call.state is not CallState.RUNNING for call in self._reply.calls):
                break
            if watch.gone:
                return False
            patient = await watch.change(KEEP_ALIVE_S)
        if (fault := self._fault()) is not None:
            await self._refused(fault)(scope, receive, send)
            return False
        headers = {"content-type": "text/event-stream", "cache-control": "no-cache", **self._extra}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        self._begun, events = True, self._events
        await _send(send, b"".join(events.begin()))
        choices = [_ChoiceProgress(index, call, self._reader_of(call)) for index, call in enumerate(self._reply.calls)]
        while True:
            text = b"".join(event for choice in choices for event in choice.take(events))
            if (fault := self._fault()) is not None or all(choice.ended for choice in choices):
                break
            if text:
                await _send(send, text)
            if watch.gone:
                return False
            if not text and not await watch.change(KEEP_ALIVE_S):
                await _send(send, KEEP_ALIVE)
        text += b"".join(events.end() if fault is None else events.fault(fault))
        gone = watch.gone
        await _send(send, text, more=False)
        return fault is None and not gone

    def _fault(self) -> CallRefusal | None:
        """Why the request can't be answered; None while it can."""
        for call in self._reply.calls:
            if call.fault is not None:
                return call.fault
        if self._session.over and any(call.state is CallState.RUNNING for call in self._reply.calls):
            return over(self._session.over)
        return None

    def _refused(self, fault: CallRefusal) -> Response:
        return Response(orjson.dumps(self._dialect.error(fault)), fault.status, fault.headers, "application/json")


class _Watch:
    """Changes of some calls, and whether their client left."""

    def __init__(self, changed: asyncio.Event, gone: asyncio.Future[None]) -> None:
        self._changed = changed
        self._gone = gone

    @property
    def gone(self) -> bool:
        return self._gone.done()

    async def change(self, timeout_s: float | None) -> bool:
        """Wait for one since the last time; False when there was none."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


class _ChoiceProgress:
    """How far one call's answer was told."""

    def __init__(self, index: int, call: SessionCall, reader: AnswerReader) -> None:
        self._index = index
        self._call = call
        self._reader = reader
        self._told = 0
        self.ended = False

    def take(self, events: Events) -> Iterator[bytes]:
        """The events for what came since the last time."""
        if self.ended:
            return
        made, start = self._call.made, self._told
        self._told = len(made)
        done = self._call.state is CallState.DONE
        ids = made.ids[start:]
        parts = self._reader.feed(ids)
        if done:
            parts += self._reader.end()
        if ids or parts:
            yield from events.delta(self._index, Delta(parts, ids, made.logprobs[start:]))
        if done:
            self.ended = True
            yield from events.finish(self._index)


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def disconnected(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
