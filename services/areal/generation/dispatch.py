"""From starts to engine calls: what arrives within a moment becomes one batched streaming call.

Owns the order of checks at a start (readiness and floor, under the swap lock) and the fate of a call's requests when
the call ends: none is ever left without an end.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from areal.errors import InfraError
from areal.generation.core import AgentCore, Entry
from areal.generation.engine_client import EngineClient, EngineRefusal
from areal.generation.requests import Live, Requests
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire

log = logging.getLogger(__name__)

COALESCE_S = 0.002  # a call costs the engine about a millisecond, whatever it holds
MAX_BATCH = 512

_ENDS = {
    Entry.DRAINING: wire.END_REASON_DRAINING,
    Entry.BELOW_FLOOR: wire.END_REASON_BELOW_FLOOR,
}


class Dispatcher:
    """Starts requests at the engine."""

    def __init__(self, core: AgentCore, engine: EngineClient, requests: Requests, lock: asyncio.Lock) -> None:
        self._core = core
        self._engine = engine
        self._requests = requests
        self._lock = lock
        self._pending: list[Live] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Requests that no engine call carries yet."""
        return len(self._pending)

    def submit(self, live: Live) -> None:
        """Start a request soon."""
        self._requests.add(live)
        self._pending.append(live)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._due)

    async def close(self) -> None:
        """Break off all calls; their requests end as lost."""
        if self._timer is not None:
            self._timer.cancel()
        self._requests.lose(self._pending)
        self._pending.clear()
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
            pending, self._pending = self._pending, []
            batch: list[Live] = []
            for live in pending:
                if live.done:
                    continue
                entry = self._core.entry(live.floor)
                if entry is Entry.START:
                    live.policy = str(self._core.held)
                    batch.append(live)
                elif entry is Entry.UNREADY:
                    lost = not self._core.engine_up
                    self._requests.end(live, wire.END_REASON_ENGINE_LOST if lost else wire.END_REASON_BELOW_FLOOR)
                else:
                    self._requests.end(live, _ENDS[entry])
            for first in range(0, len(batch), MAX_BATCH):
                self._spawn(self._call(batch[first : first + MAX_BATCH], str(self._core.held)))

    async def _call(self, batch: list[Live], policy: str) -> None:
        """One streaming call, to its end. A refused batch is tried one by one: one bad request spoils no other."""
        body = {
            "rid": [live.rid for live in batch],
            "input_ids": [live.ids for live in batch],
            "sampling_params": [live.sampling for live in batch],
            "return_logprob": True,
            "extra_key": policy,
        }
        try:
            async with self._engine.stream(body) as groups:
                async for answers in groups:
                    for answer in answers:
                        if "error" in answer:
                            raise EngineRefusal(str(answer["error"].get("message", answer["error"])))
                        self._requests.receive(answer)
        except EngineRefusal as refusal:
            left = [live for live in batch if not live.done and live.seen == 0]
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
