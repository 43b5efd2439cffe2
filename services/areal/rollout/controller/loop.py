"""The one task that owns the core, and asyncio's `CarrierPorts` for its carrier.

Owns the way of orders to streams and of answers to calls. Nothing here waits for a peer, so heartbeats are never late
on our side.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from areal.rollout.contract import wire as contract
from areal.rollout.contract.values import EvaluationGrant, Grant, fields_of
from areal.rollout.controller.carrier import Carrier, Entry, Operation, WorkOrder
from areal.rollout.controller.core import Controller
from areal.rollout.controller.decisions import (
    CallAnswer,
    GrantLease,
    JournalTombstone,
    LeaseEvaluation,
    RecordEvaluation,
    Revoke,
)
from areal.rollout.controller.disk_writer import JournalWriter, KeptWriter
from areal.rollout.controller.gauges import Gauges
from areal.rollout.controller.inputs import Call, Input
from areal.rollout.controller.kept import EvaluationsFile, RestoredState
from areal.rollout.controller.ledger_link import LedgerLink
from areal.rollout.controller.rows import PreparedRows
from areal.rollout.controller.streams import Streams

log = logging.getLogger(__name__)

_TICK_S = 0.1  # deadlines and heartbeats are judged this often: five times finer than a beat
_REST = 4  # times as long as the last pass took, no pass is made: what arrives meanwhile is one pass
_MOST_REST_S = 0.02
_GRANTED = ("group", "attempt", "missing", "floor", "max_staleness", "deadline_s")  # of a decision, and of its grant


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where effects go."""

    journal: JournalWriter
    link: LedgerLink
    kept: KeptWriter
    evaluations: EvaluationsFile
    streams: Streams
    rows: PreparedRows
    group_size: int


class CoreLoop:
    """Runs one core's carrier."""

    def __init__(self, core: Controller, outlets: Outlets, clock: Callable[[], float] = time.monotonic) -> None:
        self.core = core
        self.streams = outlets.streams
        self.evaluations = outlets.evaluations
        self._outlets = outlets
        self._clock = clock
        self.carrier = Carrier(core, self, outlets.kept.kept)
        self._woken = asyncio.Event()
        self._hurried = asyncio.Event()
        self._answers: dict[int, asyncio.Future[bool]] = {}

    @property
    def ledger_silent_s(self) -> float:
        """Since the ledger answered last."""
        return self._outlets.link.silent_s

    # ---- inputs

    def post(self, item: Input) -> None:
        """Queue an input for the core."""
        self.carrier.post(item)

    async def ask(self, call: Call) -> bool:
        """Queue a call and wait for its answer. Raises the ArealError of a refusal."""
        ticket = self.carrier.ask(call)
        self._hurried.set()
        future = self._answers[ticket] = asyncio.get_running_loop().create_future()
        try:
            accepted: bool = await future
            return accepted
        finally:
            self._answers.pop(ticket, None)

    def kept(self) -> None:
        """What was given to keep is on disk: the call that waits for it goes on now."""
        self.carrier.kept()
        self._hurried.set()

    async def run(self, gauges: Gauges) -> None:
        """Own the core for ever. A pass looks at every open group: the more there are, the more inputs it takes.

        Calls are few and don't wait for the end of a rest.
        """
        ticked = 0.0
        while True:
            wait = max(0.0, ticked + _TICK_S - self._clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            self._woken.clear()
            now = self._clock()
            if now - ticked >= _TICK_S:
                ticked = now
                self.carrier.tick(now)
            else:
                self.carrier.step(now)
            gauges.show(self.core, now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_REST * (self._clock() - now), _MOST_REST_S)):
                    await self._hurried.wait()
            self._hurried.clear()

    # ---- ports

    def wake(self) -> None:
        self._woken.set()

    def journal(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, JournalTombstone) and entry.reason not in ("filtered", "ended"):
                where = self._outlets.rows.place(entry.group)
                log.warning("group %d (%s) ends as tombstone(%s): %s", entry.group, where, entry.reason, entry.detail)
        self._outlets.journal.submit(entries)

    def ledger(self, operations: Sequence[Operation]) -> None:
        self._outlets.link.wake()

    def keep(self, kept: RestoredState) -> None:
        self._outlets.kept.submit(kept)

    def reply(self, answer: CallAnswer) -> None:
        self.streams.wake_trainers()
        if (future := self._answers.get(answer.ticket)) is None or future.done():
            return
        if answer.error is not None:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.accepted)

    def order(self, order: WorkOrder) -> None:
        if (stream := self.streams.workers.get(order.worker)) is None:
            return
        orders, rows = stream.outbox.orders, self._outlets.rows
        match order:
            case GrantLease():
                told = fields_of(order, _GRANTED)
                grant = Grant(group_size=self._outlets.group_size, row_json=rows.row(order.group), **told)
                orders.leases.append(contract.lease(grant))
            case Revoke():
                orders.revoked.append(order.group)
                for position in reversed(range(len(orders.leases))):  # a worker obeys `revoked` before `leases`
                    if orders.leases[position].group == order.group:
                        del orders.leases[position]
            case LeaseEvaluation():
                row = EvaluationGrant(
                    order.evaluation_id, order.row, order.floor, rows.evaluation_row(order.row), order.sample
                )
                orders.evaluations.append(contract.evaluation_lease(row))

    def resend(self) -> None:
        for stream in self.streams.workers.values():
            stream.outbox.orders.resend = True

    def stop_workers(self) -> None:
        log.info("the run is over")
        for stream in self.streams.workers.values():
            stream.outbox.orders.stop = True
        self.streams.wake_trainers()

    def tell_fleet(self) -> None:
        self.streams.fleet_changed()

    def tell_servers(self) -> None:
        self.streams.wake_servers()

    def tell_trainers(self) -> None:
        self.streams.wake_trainers()

    def record(self, evaluation: RecordEvaluation) -> None:
        rows, failed = evaluation.rows + evaluation.failed_rows, evaluation.failed_rows
        figures = "".join(f", {name} {value:.4f}" for name, value in evaluation.figures.items())
        log.info("evaluation of %s: %.4f over %d rows%s", evaluation.policy_id, evaluation.mean, rows, figures)
        if failed:
            log.warning(
                "%d of %d rows of the evaluation of %s failed and have no score", failed, rows, evaluation.policy_id
            )
        if evaluation.failed_samples:
            count = evaluation.failed_samples
            log.warning("%d sampled answers of the evaluation of %s failed", count, evaluation.policy_id)
        self.evaluations.append(evaluation)

    def admitted(self, group: int) -> None:
        """Its lease follows, and says everything."""
