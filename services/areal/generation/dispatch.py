"""From starts to engine calls: what may start at one moment is one batched streaming call.

Owns how much the engine has (what it can run and a little more), the order of checks at a start (readiness and floor,
under the swap lock) and the fate of a call's requests when the call ends: none is ever left without an end.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from areal.cards import ServerPhase
from areal.errors import InfraError
from areal.generation.core import AgentCore, RequestEntry
from areal.generation.engine_client import EngineClient, EngineRefusal
from areal.generation.requests import LiveRequest, Requests
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire

log = logging.getLogger(__name__)

COALESCE_S = 0.002  # a call costs the engine about a millisecond, whatever it holds
SPARE_SHARE = 4  # of what the engine can run, a quarter waits there: a place that becomes free is filled at once
MIN_SPARE = 16

_ENDS = {RequestEntry.DRAINING: wire.END_REASON_DRAINING, RequestEntry.BELOW_FLOOR: wire.END_REASON_BELOW_FLOOR}


class Dispatcher:
    """Gives the engine what it can run and a little more; the others wait, lowest floor first."""

    def __init__(
        self,
        core: AgentCore,
        engine: EngineClient,
        requests: Requests,
        lock: asyncio.Lock,
        *,
        max_running: int,
        adapters: bool = False,
    ) -> None:
        """`max_running` is how many requests the engine runs at once; `adapters`: each names its own."""
        self._core = core
        self._engine = engine
        self._requests = requests
        self._lock = lock
        self._name_adapter = adapters
        spare = max(MIN_SPARE, max_running // SPARE_SHARE)
        self._capacity = max_running + spare
        self._refill = max_running + spare // 2  # below this the engine gets more: several in a call
        self._fresh: list[LiveRequest] = []  # submitted, floor not checked yet
        self._at_engine: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = False  # a flush is due, or waits for the lock
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def at_engine(self) -> int:
        """Requests that the engine has and did not end yet."""
        return len(self._at_engine)

    def submit(self, live: LiveRequest) -> None:
        """Start a request as soon as the engine has room for it."""
        self._requests.add(live)
        self._fresh.append(live)
        self.wake()

    def wake(self) -> None:
        """Something changed that may let requests start, or that ends them."""
        if not self._flushing:
            self._flushing = True
            self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._due)

    async def close(self) -> None:
        """Break off all calls; their requests end as lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._requests.lose_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _due(self) -> None:
        self._timer = None
        self._spawn(self._flush())

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self) -> None:
        """Under the swap lock nothing changes between the check of a floor and the start."""
        async with self._lock:
            self._flushing = False
            if self._core.phase is not ServerPhase.AWAKE:
                return  # who waits here goes on waiting: it is woken when the server is
            fresh, self._fresh = self._fresh, []
            for live in fresh:
                self._admits(live)
            if not self._core.ready:
                for live in list(self._requests.waiting):
                    self._admits(live)
            if self.at_engine < self._refill and (batch := self._take(self._capacity - self.at_engine)):
                self._at_engine.update(live.rid for live in batch)
                self._spawn(self._call(batch, str(self._core.held)))

    def _take(self, room: int) -> list[LiveRequest]:
        batch: list[LiveRequest] = []
        while len(batch) < room and (live := self._requests.waiting.pop()) is not None:
            if self._admits(live):
                live.policy = str(self._core.held)
                batch.append(live)
        return batch

    def _admits(self, live: LiveRequest) -> bool:
        """Whether a request may start here; one that may not is ended."""
        if live.done:
            return False
        entry = self._core.entry(live.floor)
        if entry is RequestEntry.UNREADY:
            lost = not self._core.engine_up
            self._requests.end(live, wire.END_REASON_ENGINE_LOST if lost else wire.END_REASON_BELOW_FLOOR)
        elif entry is not RequestEntry.START:
            self._requests.end(live, _ENDS[entry])
        return entry is RequestEntry.START

    def _left(self, rids: Iterable[str]) -> None:
        """The engine is through with these."""
        for rid in rids:
            self._at_engine.discard(rid)
            self._requests.over.pop(rid, None)
        if self._requests.waiting and self.at_engine < self._refill:
            self.wake()

    async def _call(self, batch: list[LiveRequest], policy: str) -> None:
        """One streaming call, to its end. A refused batch is tried one by one: one bad request spoils no other."""
        body = {
            "rid": [live.rid for live in batch],
            "input_ids": [live.short_ids or live.ids for live in batch],
            "sampling_params": [live.sampling for live in batch],
            "return_logprob": True,
            "incremental_streaming_output": True,  # stock SGLang has a flag for it
            "extra_key": policy,
            **({"lora_path": [policy] * len(batch)} if self._name_adapter else {}),
            **({"return_routed_experts": True} if any(live.wants_routes for live in batch) else {}),
            **({"image_data": [live.images or None for live in batch]} if any(live.images for live in batch) else {}),
        }
        try:
            async with self._engine.stream(body) as groups:
                self._requests.reached(batch)
                async for answers in groups:
                    for answer in answers:
                        if "error" in answer:
                            raise EngineRefusal(str(answer["error"].get("message", answer["error"])))
                        self._requests.receive(answer)
                    self._left(a["meta_info"]["id"] for a in answers if a["meta_info"].get("finish_reason"))
        except EngineRefusal as refusal:
            left = [live for live in batch if not live.done and not live.made]
            if len(batch) == 1 and left:
                fault = common.Fault(kind=common.FAULT_KIND_DATA, message=refusal.message)
                self._requests.end(left[0], wire.END_REASON_REFUSED, fault=fault)
            elif left:
                log.warning("the engine refused a batch of %d, trying one by one: %s", len(batch), refusal.message)
                await asyncio.gather(*(self._call([live], policy) for live in left))
        except InfraError as error:
            log.warning("%d requests lost their engine: %s", sum(not live.done for live in batch), error.message)
        finally:
            self._requests.lose(live for live in batch if not live.done and not live.complete)
            self._left(live.rid for live in batch)
