"""One client's stream to one generation agent, shared by all its requests.

Owns the coalescing of what is sent: everything asked for in one turn of the event loop travels in one message. A lost
stream ends its requests with ENGINE_LOST. It never decides where a request goes.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from areal.net.heartbeat import Backoff
from areal.net.kept_stream import FIRST_BACKOFF_S, KeptStream, StreamLoss
from areal.v1 import generation_pb2 as wire
from areal.v1 import generation_pb2_grpc as wire_grpc

log = logging.getLogger(__name__)

MAX_BACKOFF_S = 2.0
MAX_STARTS = 256  # of one message: keeps the longest prompts under the message limit
MAX_BYTES = 8 << 20  # of several starts in a message, half of its limit: images make them large


class Sink(Protocol):
    """Receives what a server streams for one request."""

    def on_delta(self, request_id: str, delta: wire.GenerateDelta) -> None: ...

    def on_end(self, request_id: str, end: wire.GenerateEnd) -> None: ...


@dataclass
class _StreamOutbox:
    """What waits to be sent on one stream. It ends with its stream: nothing of it may reach another."""

    starts: dict[str, wire.GenerateStart] = field(default_factory=dict)  # by request id
    cancels: list[wire.GenerateCancel] = field(default_factory=list)


class AgentLink:
    """Starts connecting when made. `on_change` is called whenever `connected` changes."""

    def __init__(self, server_id: str, address: str, token: str, on_change: Callable[[], None]) -> None:
        self.server_id = server_id
        self.address = address
        self.connected = False
        self.last_event = time.monotonic()
        self._on_change = on_change
        self._sinks: dict[str, Sink] = {}
        self._outbox = _StreamOutbox()
        self._stream: KeptStream[wire.GenerateCall, wire.GenerateReply] = KeptStream(
            address,
            token,
            method=lambda channel: wire_grpc.GenerationStub(channel).Generate,
            report=self._report,
            on_message=self._received,
            on_open=self._opened,
            on_lost=self._lost,
            period_s=None,
            silence_s=None,  # an agent without requests is silent; who waits for its events calls `abandon`
            gather_s=0.0,
            backoff=Backoff(FIRST_BACKOFF_S, MAX_BACKOFF_S),
            what=server_id,
        )
        self._stream.start()

    @property
    def running(self) -> int:
        """Requests of this client at the agent."""
        return len(self._sinks)

    def start(self, start: wire.GenerateStart, sink: Sink) -> None:
        """Send a request; its events go to `sink` until its end."""
        if not self._sinks:
            self.last_event = time.monotonic()
        self._sinks[start.request_id] = sink
        self._outbox.starts[start.request_id] = start
        self._stream.wake()

    def cancel(self, request_id: str) -> None:
        """Forget a request and tell the agent."""
        if self._sinks.pop(request_id, None) is None:
            return
        if self._outbox.starts.pop(request_id, None) is None:
            self._outbox.cancels.append(wire.GenerateCancel(request_id=request_id))
            self._stream.wake()

    def abandon(self, why: str) -> None:
        """End the stream: its requests go elsewhere, and a new one is tried."""
        self._stream.abandon(why)

    async def close(self) -> None:
        """End the stream for good."""
        await self._stream.close()

    def _report(self) -> wire.GenerateCall | None:
        box, self._outbox = self._outbox, _StreamOutbox()
        if not (box.starts or box.cancels):
            return None
        starts, size = list(box.starts.values()), 0
        count = 0
        while count < min(len(starts), MAX_STARTS) and (size := size + starts[count].ByteSize()) <= MAX_BYTES:
            count += 1
        count = max(1, count)  # images make one alone larger
        for later in starts[count:]:
            self._outbox.starts[later.request_id] = later
            self._stream.wake()
        return wire.GenerateCall(starts=starts[:count], cancels=box.cancels)

    def _opened(self) -> None:
        self.connected = True
        self.last_event = time.monotonic()
        self._on_change()

    def _received(self, reply: wire.GenerateReply) -> None:
        self.last_event = time.monotonic()
        for event in reply.events:
            sink = self._sinks.get(event.request_id)
            if sink is None:  # cancelled meanwhile
                continue
            if event.WhichOneof("event") == "delta":
                sink.on_delta(event.request_id, event.delta)
            else:
                del self._sinks[event.request_id]
                sink.on_end(event.request_id, event.end)

    def _lost(self, lost: StreamLoss) -> None:
        self._outbox = _StreamOutbox()
        sinks, self._sinks = self._sinks, {}
        if sinks:
            log.warning("the stream to %s ended with %d requests: %s", self.server_id, len(sinks), lost.why)
        if self.connected:
            self.connected = False
            self._on_change()
        end = wire.GenerateEnd(reason=wire.END_REASON_ENGINE_LOST)
        for request_id, sink in sinks.items():
            sink.on_end(request_id, end)
