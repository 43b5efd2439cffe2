"""The requests of an agent, waiting and running: what the engine made of each, and what of it was told to its client.

Owns token truth on this side of the wire: each token leaves once, with the engine's log-probability and the policy the
engine named for it, and never before that policy is proven. An answer of the engine has what is new, or all so far.
Requests that the engine does not have yet wait here, and end without a call to it.
"""

import asyncio
import logging
import time
from base64 import b64decode
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from areal.errors import InfraError
from areal.generation.aborts import Aborts
from areal.generation.core import AgentCore
from areal.generation.journal import SampleJournal
from areal.generation.waiting import WaitingQueue
from areal.observe.waits import ProgressCounter
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire

log = logging.getLogger(__name__)

GATHER_S = 0.001  # events of one engine step travel together
MAX_EVENTS = 512  # of one message: what comes next must not wait long for its turn
MAX_ROUTE_BYTES = 4 << 20  # after which it ends; a channel takes four times that
ALIVE_S = 2.0  # a client gives a silent server of no fleet up after five
HAND_BACK_S = 5.0  # for the engine's last answers before a swap
PROVEN_KEPT = 1_024  # versions: no answer is under way for longer


class ClientStream:
    """One client's requests by their id, and what waits to be sent to it."""

    def __init__(self) -> None:
        self._events: deque[wire.GenerateEvent] = deque()
        self._wake = asyncio.Event()
        self.requests: dict[str, LiveRequest] = {}
        self.closed_by_client = False

    def put(self, event: wire.GenerateEvent) -> None:
        """Queue an event."""
        self._events.append(event)
        self._wake.set()

    def close(self) -> None:
        """The client will send no more; what runs is still answered."""
        self.closed_by_client = True
        self._wake.set()

    async def next(self) -> wire.GenerateReply | None:
        """The events there are, when there are some; None when nothing will come any more."""
        while not self._events:
            if self.closed_by_client and not self.requests:
                return None
            self._wake.clear()
            await self._wake.wait()
        if len(self._events) < MAX_EVENTS:
            await asyncio.sleep(GATHER_S)
        events, size = list[wire.GenerateEvent](), 0
        while self._events and len(events) < MAX_EVENTS and size < MAX_ROUTE_BYTES:
            events.append(self._events.popleft())
            size += len(events[-1].delta.routes)
        return wire.GenerateReply(events=events)


@dataclass(eq=False, slots=True)
class LiveRequest:
    """One request from its start to its end."""

    request_id: str
    rid: str  # the engine's name for it, unique to this attempt at this agent
    ids: list[int]
    sampling: dict[str, Any]
    floor: int
    client: ClientStream
    key: common.SampleKey | None = None  # whose answer it is; None in an evaluation
    images: list[str] = field(default_factory=list)  # data URIs
    short_ids: list[int] = field(default_factory=list)  # `ids` with one placeholder for each image
    told: list[wire.GenerateDelta] | None = None  # all that its client got; None where nothing is journaled
    policy: str = ""  # held by the engine when the request started there
    made: list[int] = field(default_factory=list)  # tokens that the engine told, withheld ones included
    logprobs: list[float] = field(default_factory=list)  # of `made`
    wants_routes: bool = False
    routes: bytearray = field(default_factory=bytearray)  # rows of all tokens but the last, where it wants them
    route_bytes: int = 0
    sent: int = 0
    heard_at: float = field(default_factory=time.monotonic)  # when its client was last told that it is being made
    withheld: dict[str, Any] | None = None  # what the engine told last, when part of it waits for a canary
    ending: wire.EndReason.ValueType | None = None  # why the agent ends it, once it was asked to
    done: bool = False

    @property
    def complete(self) -> bool:
        """Whether the engine finished it, and only a canary is awaited."""
        return self.withheld is not None and self.withheld.get("finish_reason") is not None

    def take(self, answer: dict[str, Any]) -> int:
        """Add what an answer of the engine has; returns how many tokens are new. Raises InfraError when some lack.

        Ids are those beside the log-probabilities, counted from the end: stock SGLang repeats ids when it answers an
        abort.
        """
        meta, before = answer["meta_info"], len(self.made)
        made = int(meta.get("completion_tokens", len(answer["output_ids"])))
        triples = meta.get("output_token_logprobs") or []
        first = max(0, made - len(triples))
        if triples and first > before:
            raise InfraError(f"the engine told {before} tokens, then those from {first} on")
        new = triples[len(triples) - (made - first) :]
        self.made[first:made] = [triple[1] for triple in new]
        self.logprobs[first:made] = [triple[0] for triple in new]
        if self.wants_routes and (rows := int(meta.get("routed_experts_rows", 0))):
            told = meta["routed_experts"]
            if isinstance(told, bytes) and rows != len(self.ids) + made - 1:
                log.error("SGLang told experts of %d tokens, not of %d and %d", rows, len(self.ids), made - 1)
                return len(self.made) - before  # asked again it would do the same: the trainer refuses such samples
            told = told if isinstance(told, bytes) else b64decode(told)
            self.routes += told
            self.route_bytes = len(told) // rows
            if len(self.routes) != self.route_bytes * (len(self.ids) + made - 1):
                raise InfraError(f"the engine told experts of {rows} tokens more, after {before} of {made} tokens")
        return len(self.made) - before


class Requests:
    """All requests. Lives on one event loop."""

    def __init__(
        self,
        core: AgentCore,
        server_id: str,
        progress: ProgressCounter,
        aborts: Aborts,
        journal: SampleJournal | None = None,
        *,
        adapters: bool = False,
        routes_at_end: bool = False,
    ) -> None:
        """`adapters`: each request keeps the version that it started with, whatever comes after it. `routes_at_end`:
        the engine tells the experts of an answer's tokens with its last ones."""
        self._core = core
        self._server_id = server_id
        self._progress = progress
        self._aborts = aborts
        self._journal = journal
        self._keep_version = adapters
        self._routes_at_end = routes_at_end
        self._live: dict[str, LiveRequest] = {}
        self.over: dict[str, int] = {}  # tokens made of those that ended here, while the engine may not know it yet
        self.waiting: WaitingQueue[LiveRequest] = WaitingQueue()  # those that the engine doesn't have
        self._proven: dict[str, None] = {}  # the newest, in the order of their canaries
        self._empty = asyncio.Event()
        self._empty.set()
        self._ended = asyncio.Event()  # set by each end
        self.tokens_total = 0
        self.interruptions_total = 0

    def __len__(self) -> int:
        return len(self._live)

    # ---- starts and ends

    def add(self, live: LiveRequest) -> None:
        """A request that waits for its turn."""
        if self._journal is not None:
            live.told = []
        self._live[live.rid] = live
        live.client.requests[live.request_id] = live
        self.waiting.push(live)
        self._empty.clear()

    def end(
        self,
        live: LiveRequest,
        reason: wire.EndReason.ValueType,
        *,
        matched: str = "",
        fault: common.Fault | None = None,
    ) -> None:
        """Tell the client that a request is over; only the first end counts."""
        if live.done:
            return
        live.done = True
        self._ended.set()
        self._live.pop(live.rid, None)
        if live.policy:
            self.over[live.rid] = len(live.made)
        self.waiting.discard(live.rid)
        live.client.requests.pop(live.request_id, None)
        end = wire.GenerateEnd(reason=reason, matched=matched, fault=fault)
        live.client.put(wire.GenerateEvent(request_id=live.request_id, end=end))
        if self._journal is not None and live.told:
            self._journal.ended(live.request_id, live.key, live.ids, live.told, live.sampling["temperature"], reason)
        if not self._live:
            self._empty.set()

    def leave(self, live: LiveRequest, reason: wire.EndReason.ValueType) -> None:
        """End a request early; what the engine made so far comes first, when it answers the abort."""
        if live.rid in self.waiting:
            self.end(live, reason)
        elif live.ending is None and not live.done:
            live.ending = reason
            self._aborts.one(live.rid)

    def cancel(self, live: LiveRequest) -> None:
        """The client wants no more of it."""
        if live.rid not in self.waiting:
            self._aborts.one(live.rid)
        self.end(live, wire.END_REASON_CANCELLED)

    def reached(self, lives: Iterable[LiveRequest]) -> None:
        """The engine has these now. An abort that overtook its request was lost, and is sent again."""
        for live in lives:
            if live.done or live.ending is not None:
                self._aborts.one(live.rid)

    def abandon(self, client: ClientStream) -> None:
        """A client went away."""
        for live in list(client.requests.values()):
            self.cancel(live)

    async def drain(self, grace_s: float) -> int:
        """End everything with what was made; returns how many requests that were."""
        ended = len(self._live)
        for live in list(self.waiting):
            self.end(live, wire.END_REASON_DRAINING)
        if self._live:
            for live in self._live.values():
                if live.ending is None:
                    live.ending = wire.END_REASON_DRAINING
            self._aborts.all()
            try:
                await asyncio.wait_for(self._empty.wait(), grace_s)
            except TimeoutError:
                log.warning("%d requests ended without the engine's last tokens", len(self._live))
        for live in list(self._live.values()):
            self.end(live, live.ending or wire.END_REASON_DRAINING)
        return ended

    def lose(self, lives: Iterable[LiveRequest]) -> None:
        """The engine died under these requests, or broke their stream."""
        for live in list(lives):
            if not live.done:
                self.end(live, live.ending or wire.END_REASON_ENGINE_LOST)

    def lose_all(self) -> None:
        """The engine died."""
        self.lose(list(self._live.values()))

    # ---- what the engine made

    def receive(self, answer: dict[str, Any]) -> None:
        """One answer of the engine."""
        rid = str(answer["meta_info"]["id"])
        if (live := self._live.get(rid)) is None:
            if rid in self.over:  # cancelled or ended meanwhile, but made
                before, made = self.over[rid], int(answer["meta_info"].get("completion_tokens", 0))
                self.over[rid] = max(before, made)
                self.tokens_total += self.over[rid] - before
            return
        if live.images and (read := int(answer["meta_info"].get("prompt_tokens", len(live.ids)))) != len(live.ids):
            words = f"the engine made {read} tokens of a prompt with images, not {len(live.ids)}: it cuts otherwise"
            fault = common.Fault(kind=common.FAULT_KIND_DATA, message=words)
            self._aborts.one(rid)  # stock SGLang drops images whose places it doesn't find in the prompt's text
            self.end(live, wire.END_REASON_REFUSED, fault=fault)
            return
        if (new := live.take(answer)) > 0:
            self.tokens_total += new
            self._progress.advance(new)
        self._tell(live, answer["meta_info"])

    @property
    def settled_total(self) -> int:
        """Tokens made, without those that wait to be streamed."""
        return self.tokens_total - sum(len(live.made) - live.sent for live in self._live.values())

    def _tell(self, live: LiveRequest, meta: dict[str, Any]) -> None:
        """Send what is new and proven; keep what the engine told when the rest must wait."""
        if self._routes_at_end and live.wants_routes and not meta.get("finish_reason"):
            if time.monotonic() - live.heard_at > ALIVE_S:  # its client would take a silent stream for a broken one
                live.heard_at = time.monotonic()
                live.client.put(wire.GenerateEvent(request_id=live.request_id, delta=wire.GenerateDelta()))
            return
        made = len(live.made)
        spans = _spans(live, {"weight_version": live.policy} if self._keep_version else meta, made)
        proven = self._proven_tokens(spans, made) if spans is not None else live.sent
        if spans is not None and proven > live.sent:
            self._send(live, spans, proven)
        if proven < made:
            live.withheld = meta
            return
        live.withheld = None
        finish = meta.get("finish_reason")
        if finish:
            self._finish(live, finish)

    def _proven_tokens(self, spans: list[dict[str, Any]], made: int) -> int:
        for span in spans:
            if span["end"] > span["start"] and span["version"] not in self._proven:
                return int(span["start"])
        return made

    def _send(self, live: LiveRequest, spans: list[dict[str, Any]], until: int) -> None:
        """In pieces, where their routes would be too much for a message."""
        most = max(1, MAX_ROUTE_BYTES // live.route_bytes) if live.routes else until
        while live.sent < until:
            self._send_piece(live, spans, min(until, live.sent + most))

    def _send_piece(self, live: LiveRequest, spans: list[dict[str, Any]], until: int) -> None:
        first = live.sent
        delta = wire.GenerateDelta(
            token_ids=np.asarray(live.made[first:until], dtype="<i4").tobytes(),
            logprobs=np.asarray(live.logprobs[first:until], dtype="<f4").tobytes(),
        )
        if live.routes:
            behind = len(live.ids) - 1
            begin = behind + first if first else 0
            delta.routes = bytes(live.routes[begin * live.route_bytes : (behind + until) * live.route_bytes])
            delta.route_bytes = live.route_bytes
        for span in spans:
            start, end = max(first, span["start"]), min(until, span["end"])
            if end > start:
                delta.spans.add(
                    start=start - first, end=end - first, policy_id=span["version"], server_id=self._server_id
                )
        live.sent = until
        if live.told is not None:
            live.told.append(delta)
        live.client.put(wire.GenerateEvent(request_id=live.request_id, delta=delta))

    def _finish(self, live: LiveRequest, finish: dict[str, Any]) -> None:
        kind = finish.get("type")
        if kind == "stop":
            self.end(live, wire.END_REASON_STOP, matched=str(finish.get("matched", "")))
        elif kind == "length":
            self.end(live, wire.END_REASON_LENGTH)
        elif live.ending is not None:
            self.end(live, live.ending)
        elif finish.get("status_code"):
            fault = common.Fault(kind=common.FAULT_KIND_DATA, message=str(finish.get("message", "")))
            self.end(live, wire.END_REASON_REFUSED, fault=fault)
        else:
            self.end(live, wire.END_REASON_ABORTED)

    # ---- swaps

    async def hand_back(self) -> None:
        """Before a pause: end what runs where routes come with the last tokens, and wait for these.

        After it SGLang would compute tokens that are there anew, and tell the next version's experts for them. What it
        doesn't answer in time is sampled again: nobody was told of it.
        """
        running = [live for live in self._live.values() if live.rid not in self.waiting and not live.complete]
        if not self._routes_at_end or not any(live.wants_routes for live in running):
            return
        for live in running:
            live.ending = live.ending or wire.END_REASON_ABORTED
        self._aborts.all()
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_BACK_S):
                while not all(live.done for live in running):
                    self._ended.clear()
                    await self._ended.wait()
        for live in running:
            self.end(live, live.ending or wire.END_REASON_ABORTED)

    def interrupted(self) -> None:
        """Generation pauses now."""
        self.interruptions_total += len(self._live) - len(self.waiting)

    async def settle(self) -> None:
        """Releases what waited for proof of the engine's version, and sends away who needs a newer one."""
        self._proven[str(self._core.held)] = None
        if len(self._proven) > PROVEN_KEPT:
            del self._proven[next(iter(self._proven))]
        for live in list(self._live.values()):
            if live.withheld is not None:
                self._tell(live, live.withheld)
            if not live.done and self._too_old(live):
                self.leave(live, wire.END_REASON_BELOW_FLOOR)

    def _too_old(self, live: LiveRequest) -> bool:
        """Whether what makes this request's tokens is older than its floor."""
        return not (self._keep_version and live.policy) and self._core.version < live.floor

    def leave_policy(self, policy: str) -> None:
        """End the requests that started with this version; their clients go on elsewhere."""
        for live in list(self._live.values()):
            if live.policy == policy:
                self.leave(live, wire.END_REASON_ABORTED)

    async def discard(self) -> None:
        """Sends elsewhere what runs: the engine's version failed its canary, and nobody may get tokens of it."""
        self._proven.pop(str(self._core.held), None)
        for live in list(self._live.values()):
            if live.rid not in self.waiting:
                self.end(live, live.ending or wire.END_REASON_ABORTED)
        self._aborts.all()


def _spans(live: LiveRequest, meta: dict[str, Any], made: int) -> list[dict[str, Any]] | None:
    """Who made the tokens; None when that can't be told yet.

    Stock SGLang names spans in the last answer only, and its newest version in the others. As long as that is the
    version at the start, it made everything; afterwards nothing is certain until the last answer.
    """
    spans: list[dict[str, Any]] | None = meta.get("weight_versions")
    if spans is not None:
        return spans
    if meta.get("weight_version") == live.policy:
        return [{"version": live.policy, "start": 0, "end": made}]
    return None
