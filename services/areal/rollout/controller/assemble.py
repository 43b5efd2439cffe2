"""Builds one controller from its parts and runs it. What `main` reads from a job comes in as plain values.

Owns the order of a start: fence, journal, ledger claim and scan, then the core, then the doors open.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

from areal.errors import InfraError
from areal.ledger import fences
from areal.ledger.fences import allocate
from areal.ledger.journal import Journal
from areal.ledger.values import LedgerSnapshot
from areal.method_access import MethodAccess
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.traces import NO_TRACES, Traces
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.record.episode_ends import read_counts, read_ends, write_ends
from areal.rollout.controller.carrier import rebuild
from areal.rollout.controller.core import Controller
from areal.rollout.controller.disk_writer import JournalWriter, KeptWriter
from areal.rollout.controller.evaluation import BlindLook
from areal.rollout.controller.gauges import Gauges
from areal.rollout.controller.kept import EvaluationsFile, KeptFile
from areal.rollout.controller.ledger_link import ControllerLedger, LedgerLink
from areal.rollout.controller.loop import CoreLoop, Outlets
from areal.rollout.controller.rows import PreparedRows
from areal.rollout.controller.service import RolloutService
from areal.rollout.controller.settings import ControllerSettings
from areal.rollout.controller.streams import Streams
from areal.rollout.controller.tally import Tally
from areal.v1 import rollout_pb2_grpc as rollout_grpc

log = logging.getLogger(__name__)

# Keeps counts of ended episodes and of tokens on disk while a controller runs, so that its successor goes on from them.

_PERIOD_S = 1.0  # of what a crash forgets


class EndsKeeper:
    """Writes the tally's counts of one controller's fence."""

    def __init__(self, directory: Path, fence: int, tally: Tally) -> None:
        self._directory = directory
        self._fence = fence
        self._tally = tally
        self._written: dict[str, int] = {}
        tally.ends.update(read_ends(directory))
        tally.tokens.restore(read_counts(directory))

    async def run(self) -> None:
        """Write the counts of earlier controllers at once and what changed once a second, until cancelled."""
        while True:
            if (counts := self._counts()) != self._written:
                self._written = counts
                await asyncio.to_thread(self._write, counts)
            await asyncio.sleep(_PERIOD_S)

    def close(self, *, over: bool) -> None:
        """Write the last counts; `over`: the run is, and nothing is in flight."""
        if over:
            self._tally.tokens.close()
        self._write(self._counts())

    def _counts(self) -> dict[str, int]:
        return {**self._tally.ends, **self._tally.tokens.kept()} if self._tally.ends else {}

    def _write(self, ends: dict[str, int]) -> None:
        try:
            write_ends(self._directory, self._fence, ends)
        except OSError as error:
            log.warning("the counts of ended episodes were not kept: %s", error)


_PAUSE_S = 0.2
_GRACE_S = 1.0  # for open calls at the end; streams end at once


@dataclass(frozen=True, slots=True)
class ControllerPaths:
    """Where the controller's files lie."""

    fences: Path
    journal: Path
    kept: Path
    evaluations: Path


@dataclass(frozen=True, slots=True)
class Parts:
    """What `serve` is given; each has a lifetime of its own."""

    job: str
    access: MethodAccess | str
    settings: ControllerSettings
    paths: ControllerPaths
    rows: PreparedRows
    ledger: ControllerLedger
    metrics: RoleMetrics
    waits: WaitRegistry
    progress: ProgressCounter
    job_digest: str = ""  # of the job file
    host: str = "127.0.0.1"  # to listen on
    patience_s: float = 60.0  # until Redis is there: it loads its file at up to 330 MB/s, and a pod is scheduled first
    traces: Traces = NO_TRACES


async def serve(parts: Parts, port: int, stop: asyncio.Event, started: Callable[[int], None] | None = None) -> None:
    """Run a controller until `stop`. `started` gets the port. Raises FencedError when a newer controller is alive."""
    fence = allocate(parts.paths.fences, "controller")
    log.info("controller f%d starts", fence)
    journal = Journal(parts.paths.journal)
    state = journal.start(fence)
    parts.rows.replay(state.pools, state.rounds)
    newest = partial(fences.newest, parts.paths.fences, "controller")
    kept = KeptFile(parts.paths.kept, fence, newest, parts.job_digest)
    evaluations = EvaluationsFile(parts.paths.evaluations)
    view = await _claim(parts, fence)
    evaluated = [result.get("name", result["policy_id"]) for result in evaluations.results]
    names = [field.name for field in fields(BlindLook)]
    looks = [BlindLook(*(result[name] for name in names)) for result in evaluations.results if "blind" in result]
    settings, rebuilt = rebuild(parts.settings, state, kept.kept, view, evaluated, fence, looks)
    for name in ("max_steps", "max_staleness", "ahead", "max_concurrent"):
        holds, said = asdict(settings)[name], asdict(parts.settings)[name]
        if holds != said:
            log.warning("%s is %s, as set during the run; the job file says %s", name, holds, said)
    core = Controller(settings, rebuilt, time.monotonic(), parts.rows.place)
    ends = EndsKeeper(parts.paths.kept, fence, core.book.tally)
    outlets = Outlets(
        journal=JournalWriter(journal, fence, newest, parts.rows.journalled),
        link=LedgerLink(parts.ledger, fence, settings.group_size, parts.waits, view.run_id),
        kept=KeptWriter(kept),
        evaluations=evaluations,
        streams=Streams(),
        rows=parts.rows,
        group_size=settings.group_size,
    )
    loop = CoreLoop(core, outlets)
    server = GrpcServer("controller", parts.access, waits=parts.waits, progress=parts.progress)
    service = RolloutService(parts.job, core, loop, fence)
    server.add(rollout_grpc.add_RolloutServicer_to_server, service, "areal.v1.Rollout")
    bound = await server.start(port, parts.host)
    await server.set_ready(True)
    if started is not None:
        started(bound)
    gauges = Gauges(parts.metrics, parts.waits, parts.progress, parts.traces)
    try:
        carrier = loop.carrier
        writers = (outlets.journal.run(carrier), outlets.kept.run(loop.kept), ends.run())
        await _until(stop, loop.run(gauges), outlets.link.run(carrier), *writers)
    finally:
        outlets.streams.end()
        await server.stop(_GRACE_S)
        journal.close()
        ends.close(over=core.done)


async def _until(stop: asyncio.Event, *loops: Awaitable[None]) -> None:
    """Run the loops until `stop`; the first that fails ends all, with its error."""
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    asked = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, asked], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (*tasks, asked):
            task.cancel()
        await asyncio.gather(*tasks, asked, return_exceptions=True)


async def _claim(parts: Parts, fence: int) -> LedgerSnapshot:
    """Claim the ledger and read it, waiting for Redis to come up."""
    give_up = time.monotonic() + parts.patience_s
    with parts.waits.waiting("ledger", "Redis answers", deadline_s=parts.patience_s):
        while True:
            try:
                await parts.ledger.claim(fence)
                return await parts.ledger.scan()
            except InfraError:
                if time.monotonic() > give_up:
                    raise
                await asyncio.sleep(_PAUSE_S)
