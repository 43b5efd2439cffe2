"""The one task that owns the core: inputs in through one queue, decisions out in order.

Owns the order of things. A decision is carried out by handing it on (to a stream, the ledger's link, the journal's
writer); nothing here waits for a peer, so heartbeats are never late on our side.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from areal.rollout.controller.core import Controller
from areal.rollout.controller.decisions import (
    Admit,
    AdvanceLedger,
    Answer,
    CloseGroup,
    Decision,
    FleetChanged,
    FloorChanged,
    GrantLease,
    JournalCursor,
    JournalTombstone,
    KeepHot,
    KeepServed,
    LeaseEvaluation,
    RecordEvaluation,
    ReopenGroup,
    Resend,
    Revoke,
    ScanLedger,
    StopWorkers,
    WantWeights,
)
from areal.rollout.controller.evaluations_file import EvaluationsFile
from areal.rollout.controller.gauges import Gauges
from areal.rollout.controller.journal_writer import JournalWriter
from areal.rollout.controller.kept import KeptFile
from areal.rollout.controller.ledger_link import LedgerLink
from areal.rollout.controller.rows import Rows
from areal.rollout.controller.streams import Streams
from areal.v1 import rollout_pb2 as rollout

log = logging.getLogger(__name__)

Input: TypeAlias = Callable[[Controller, float], None]

_TICK_S = 0.1  # deadlines and heartbeats are judged this often: five times finer than a beat


class CoreLoop:
    """Feeds the core and carries its decisions out."""

    def __init__(
        self,
        rows: Rows,
        group_size: int,
        kept: KeptFile,
        evaluations: EvaluationsFile,
        streams: Streams,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.streams = streams
        self.evaluations = evaluations
        self._rows = rows
        self._group_size = group_size
        self._kept = kept
        self._clock = clock
        self._inputs: asyncio.Queue[Input] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[bool]] = {}
        self._tickets = 0

    def post(self, item: Input) -> None:
        """Queue an input for the core."""
        self._inputs.put_nowait(item)

    async def ask(self, call: Callable[[Controller, int], None]) -> bool:
        """Queue a call that gets a ticket, and wait for its answer. Raises the ArealError of a refusal."""
        self._tickets += 1
        ticket = self._tickets
        future = self._answers[ticket] = asyncio.get_running_loop().create_future()
        self.post(lambda core, now: call(core, ticket))
        try:
            accepted: bool = await future
            return accepted
        finally:
            self._answers.pop(ticket, None)

    async def run(self, core: Controller, link: LedgerLink, journal: JournalWriter, gauges: Gauges) -> None:
        """Own the core for ever."""
        ticked = 0.0
        while True:
            wait = max(0.0, ticked + _TICK_S - self._clock())
            try:
                async with asyncio.timeout(wait):
                    item = await self._inputs.get()
                item(core, self._clock())
                while not self._inputs.empty():
                    self._inputs.get_nowait()(core, self._clock())
            except TimeoutError:
                pass
            now = self._clock()
            if now - ticked >= _TICK_S:
                ticked = now
                core.tick(now)
            for decision in core.decide(now):
                self._carry(decision, link, journal)
            gauges.show(core, now)

    def _carry(self, decision: Decision, link: LedgerLink, journal: JournalWriter) -> None:
        match decision:
            case GrantLease() | Revoke() | FloorChanged() | LeaseEvaluation():
                self._order(decision)
            case JournalTombstone() | JournalCursor():
                self._log_tombstone(decision)
                journal.submit(decision)
            case CloseGroup(short=True):
                journal.submit(decision)
            case CloseGroup() | ReopenGroup() | ScanLedger() | AdvanceLedger():
                link.submit(decision)
            case Answer():
                self._answer(decision)
                self.streams.wake_trainers()
            case KeepServed(weights):
                self._kept.update(served=weights)
            case KeepHot(max_steps, max_staleness, max_concurrent):
                self._kept.update(max_steps=max_steps, max_staleness=max_staleness, max_concurrent=max_concurrent)
                self.streams.wake_trainers()
            case WantWeights():
                self.streams.wake_servers()
            case FleetChanged():
                self.streams.fleet_changed()
            case Resend():
                for stream in self.streams.workers.values():
                    stream.outbox.orders.resend = True
            case RecordEvaluation():
                log.info("evaluation of %s: %.4f over %d rows", decision.policy_id, decision.mean, decision.rows)
                self.evaluations.append(decision)
            case StopWorkers():
                log.info("the run is over")
                for stream in self.streams.workers.values():
                    stream.outbox.orders.stop = True
                self.streams.wake_trainers()
            case Admit():
                pass

    def _order(self, decision: GrantLease | Revoke | FloorChanged | LeaseEvaluation) -> None:
        stream = self.streams.workers.get(decision.worker)
        if stream is None:
            return
        orders = stream.outbox.orders
        match decision:
            case GrantLease():
                orders.leases.add(
                    group=decision.group,
                    attempt=decision.attempt,
                    missing=decision.missing,
                    group_size=self._group_size,
                    floor=decision.floor,
                    max_staleness=decision.max_staleness,
                    row_json=self._rows.row(decision.group),
                    deadline_s=decision.deadline_s,
                )
            case Revoke():
                orders.revoked.append(decision.group)
                self._withdraw(orders, decision.group)
            case FloorChanged():
                orders.floors.append(rollout.GroupFloor(group=decision.group, floor=decision.floor))
            case LeaseEvaluation():
                orders.evaluations.add(
                    evaluation_id=decision.evaluation_id,
                    floor=decision.floor,
                    row=decision.row,
                    row_json=self._rows.evaluation_row(decision.row),
                )

    def _withdraw(self, orders: rollout.WorkOrders, group: int) -> None:
        """A lease that did not go out yet is void: a worker obeys `revoked` before `leases`."""
        for position in reversed(range(len(orders.leases))):
            if orders.leases[position].group == group:
                del orders.leases[position]

    def _answer(self, answer: Answer) -> None:
        future = self._answers.get(answer.ticket)
        if future is None or future.done():
            return
        if answer.error is not None:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.accepted)

    def _log_tombstone(self, decision: JournalTombstone | JournalCursor) -> None:
        if isinstance(decision, JournalTombstone) and decision.reason not in ("filtered", "ended"):
            log.warning("group %d ends as tombstone(%s): %s", decision.group, decision.reason, decision.detail)
