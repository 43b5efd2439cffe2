"""Brings made samples into the ledger, many in one round trip, for as long as it takes.

Owns the only writer. The ledger being away costs time, never a sample: what could not be stored stays with the core. A
ledger that came back as another process may have lost its tail, so everything kept is added again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

from areal.errors import InfraError
from areal.ledger.async_client import AsyncLedger
from areal.ledger.values import NewSample
from areal.observe.traces import NO_TRACES, Traces
from areal.observe.waits import WaitRegistry
from areal.rollout.worker.core import WorkerCore
from areal.rollout.worker.runner import EpisodeResult, Key

log = logging.getLogger(__name__)

BATCH = 128  # samples a round trip
SLOW_S = 1.0  # a call that took so long may have met a restart
PAUSE_S = 1.0  # after the ledger client gave up, which itself tries for a while


class Storer:
    """`on_stored` is called after each batch."""

    def __init__(
        self,
        core: WorkerCore,
        ledger: AsyncLedger,
        waits: WaitRegistry,
        on_stored: Callable[[], None],
        traces: Traces = NO_TRACES,
    ) -> None:
        self._core = core
        self._ledger = ledger
        self._waits = waits
        self._on_stored = on_stored
        self._traces = traces
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._run_id = ""

    def wake(self) -> None:
        """There are samples to store."""
        self._news.set()

    async def run(self) -> None:
        """Store until cancelled. Raises what trying again won't cure, such as a refused login."""
        while True:
            self._idle.set()
            await self._news.wait()
            self._news.clear()
            self._idle.clear()
            while self._core.storing:
                await self._store()

    async def flush(self, timeout_s: float) -> None:
        """Give what was made a last chance to be stored."""
        if self._core.storing:
            self._idle.clear()
            self._news.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    async def _store(self) -> None:
        samples = self._core.take_to_store(BATCH)
        began = time.monotonic()
        try:
            with self._waits.waiting("ledger", f"{len(samples)} samples stored", deadline_s=30.0):
                self._run_id = self._run_id or await self._ledger.run_id()
                results = await self._ledger.add_samples(samples)
        except InfraError as error:
            self._core.not_stored(samples)
            log.warning("the ledger is away, samples wait: %s", error.message)
            with self._waits.waiting("ledger", "the ledger to come back"):
                await asyncio.sleep(PAUSE_S)
            return
        for sample, result in zip(samples, results, strict=True):
            self._core.stored(sample, result)
        if self._traces.on:
            trace_stored(self._traces, samples, self._traces.wall(began), time.time())
        self._on_stored()
        if time.monotonic() - began > SLOW_S:
            await self._look_for_a_restart()

    async def _look_for_a_restart(self) -> None:
        try:
            run_id = await self._ledger.run_id()
        except InfraError:
            return  # the next batch meets it, too
        if run_id != self._run_id:
            self._run_id = run_id
            log.warning("the ledger restarted: adding %d groups' samples again", len(self._core.samples))
            self._core.resend()


# ---- Spans of a worker: each try at a sample, what its time went to, and its way into the ledger


_GAP_S = 0.001  # before a further turn; what is shorter is our own hand-over, not the workflow's tools


def trace_episode(traces: Traces, key: Key, attempt: int, ending: EpisodeResult, ended: float) -> None:
    """An episode is over, at `ended` (unix seconds). Evaluations are no group's life."""
    if key.evaluation or not traces.wants(key.group):
        return
    own = traces.sample(key.group, key.index, attempt)
    episode = ending.episode
    traces.emit(
        "sample",
        ending.began or ended,
        ended,
        own=own,
        parent=traces.group(key.group),
        error=ending.message,
        attributes={
            "group": key.group,
            "index": key.index,
            "attempt": attempt,
            "outcome": ending.kind.value or "complete",
            "tokens": sum(len(one.input_ids) for one in episode.sequences) if episode is not None else 0,
            **({"reward": episode.reward} if episode is not None else {}),
        },
    )
    moments = sorted(ending.moments, key=lambda moment: moment.began)
    for moment in moments:
        traces.emit(moment.what, moment.began, moment.ended, parent=own, attributes={"turn": moment.turn})
    for before, after in pairwise(moments):
        if after.what == "generate" and after.began - before.ended > _GAP_S:
            traces.emit("tools", before.ended, after.began, parent=own, attributes={"turn": after.turn})


def trace_stored(traces: Traces, samples: Iterable[NewSample], began: float, ended: float) -> None:
    """Samples went to the ledger in one round trip. Times are unix seconds."""
    for sample in samples:
        if traces.wants(sample.group):
            parent = traces.sample(sample.group, sample.index, sample.meta.attempt)
            traces.emit("store", began, ended, parent=parent, attributes={"bytes": len(sample.payload)})
