"""A controller's run that is killed at any point, with the rows of prepared data."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from areal.ledger.journal import Journal
from areal.ledger.lines import Record, RecordLine
from areal.ledger.state import LedgerModel
from areal.rollout.controller.carrier import rebuild
from areal.rollout.controller.decisions import GrantLease
from areal.rollout.controller.disk_writer import write_entries
from areal.rollout.controller.inputs import AdvanceTrainer, AttachTrainer, PublishWeights, TrainerBeat, TrainerReport
from areal.rollout.controller.kept import RestoredState
from areal.rollout.controller.rows import PreparedRows
from areal.rollout.controller.settings import ControllerSettings
from controller_bench import Bench, weights


class KilledJournal:
    """Lines in memory; a kill loses what was not written yet, or leaves half a line."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def read(self) -> Sequence[RecordLine]:
        found = []
        for number, line in enumerate(self.lines, start=1):
            try:
                found.append(RecordLine(number, orjson.loads(line)))
            except orjson.JSONDecodeError:
                found.append(RecordLine(number, None))
        return found

    def append(self, records: Sequence[Record], *, sync: bool) -> None:
        self.lines += [orjson.dumps(record) for record in records]

    def close(self) -> None: ...


@dataclass
class KilledRun:
    """A controller that is killed at any point, its workers and trainer, and every row that a group was ever given."""

    settings: ControllerSettings
    read_rows: Callable[[], PreparedRows]
    draw: random.Random
    lines: KilledJournal = field(default_factory=KilledJournal)
    ledger: LedgerModel = field(default_factory=LedgerModel)
    rows: dict[int, bytes] = field(default_factory=dict)
    fence: int = 0
    step: int = 0
    checkpoint: int = 0

    def start(self) -> None:
        """A controller starts from what the journal and the ledger hold."""
        self.fence += 1
        self.journal = Journal(Path("journal"), self.lines)
        state = self.journal.start(self.fence)
        self.reader = self.read_rows()
        self.reader.replay(state.pools, state.rounds)
        settings, rebuilt = rebuild(self.settings, state, RestoredState(), self.ledger.scan(), ())
        settings = replace(settings, max_steps=1000, max_concurrent=6, filter_zero_variance=False)
        self.bench = Bench(settings, rebuilt, journalling=False, ledger=self.ledger, place=self.place)
        self.read = 0
        self.bench.ask(PublishWeights(1, weights(self.step)))
        self.bench.server(self.step)
        self.bench.worker()
        self.bench.ask(AttachTrainer(1, self.step))
        self.carry()

    def place(self, group: int) -> str:
        return self.reader.place(group)

    def carry(self) -> None:
        """Write what waits, then see what the leases say."""
        while self.bench.unwritten:
            entries = list(self.bench.unwritten)
            write_entries(self.journal, entries, self.fence, lambda: self.fence)
            self.reader.journalled(entries)
            self.bench.write()
            self.bench.run()
        for grant in self.bench.all(GrantLease)[self.read :]:
            row = self.reader.row(grant.group)
            assert self.rows.setdefault(grant.group, row) == row, f"group {grant.group} has another row"
            self.read += 1

    def killed(self) -> None:
        """At any point: entries that were not written are lost, one of them perhaps cut."""
        if self.bench.unwritten and self.draw.random() < 0.5:
            self.lines.lines.append(b'{"kind": "poo')
        self.start()

    def kills(self, share: float) -> bool:
        if self.draw.random() < share:
            self.killed()
            return True
        return False

    def step_on(self, share: float) -> None:
        """A batch is made, taken and perhaps saved, with a kill wherever one may come."""
        for group in (2 * self.step, 2 * self.step + 1):
            if group in self.ledger.scan().closed:
                continue
            worth = len(orjson.loads(self.reader.row(group))["prompt"]) % 3
            self.bench.done(group, [float(worth > 0), float(worth > 1)], version=self.step, tokens=1 + 10 * worth)
            self.carry()
            self.kills(share)
        answer: Any = None
        while answer is None:
            self.bench.ask(AdvanceTrainer(1, self.step, 2))
            if self.kills(share):
                continue
            self.carry()
            answer = True
        self.step += 1
        self.bench.ask(PublishWeights(1, weights(self.step)))
        self.bench.server(self.step)
        self.carry()
        if self.step % 3 == 0:
            self.checkpoint = self.step
            self.ledger.commit(1, self.step)
        self.bench.take(TrainerBeat(TrainerReport(1, self.step, self.checkpoint)))
        if not self.kills(share):
            self.carry()
