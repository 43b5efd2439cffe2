"""The carrier's order of effects, with ports that only write down what they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from areal.errors import FencedError
from areal.ledger.journal import Journal, JournalState, read_journal
from areal.ledger.state import LedgerModel
from areal.ledger.values import CloseResult, CloseStatus
from areal.rollout.controller.carrier import Carrier, Entry, Operation, rebuild
from areal.rollout.controller.core import Controller, Rebuilt
from areal.rollout.controller.decisions import (
    COMPLETE,
    CallAnswer,
    CloseGroup,
    Decision,
    JournalTombstone,
    RecordEvaluation,
    ReopenGroup,
    ScanLedger,
)
from areal.rollout.controller.disk_writer import write_entries
from areal.rollout.controller.inputs import PublishWeights, SetHotFields
from areal.rollout.controller.kept import KeptFile, RestoredState
from controller_bench import SETTINGS, weights

TOMBSTONE = JournalTombstone(3, "rejected", "why")


@dataclass
class Written:
    """Ports that do nothing."""

    effects: list[Any] = field(default_factory=list)

    def wake(self) -> None:
        pass

    def journal(self, entries: Sequence[Entry]) -> None:
        self.effects.append(("journal", tuple(entries)))

    def ledger(self, operations: Sequence[Operation]) -> None:
        self.effects.append(("ledger", tuple(operations)))

    def keep(self, kept: RestoredState) -> None:
        self.effects.append(("keep", kept))

    def reply(self, answer: CallAnswer) -> None:
        self.effects.append(("reply", answer))

    def order(self, order: object) -> None: ...
    def resend(self) -> None: ...
    def stop_workers(self) -> None: ...
    def tell_fleet(self) -> None: ...

    def tell_servers(self) -> None:
        self.effects.append(("tell_servers", None))

    def record(self, evaluation: RecordEvaluation) -> None: ...
    def admitted(self, group: int) -> None: ...

    def of(self, kind: str) -> list[Any]:
        return [what for name, what in self.effects if name == kind]


class Scripted(Controller):
    """A core that decides what the test says."""

    script: list[Decision]

    def decide(self, now: float) -> list[Decision]:
        super().decide(now)
        script, self.script = getattr(self, "script", []), []
        return script


def carrier(*decisions: Decision) -> tuple[Carrier, Written]:
    ports = Written()
    core = Scripted(SETTINGS, Rebuilt(view=LedgerModel().scan()), 0.0)
    core.script = list(decisions)
    made = Carrier(core, ports, RestoredState())
    made.step(0.0)
    return made, ports


def test_a_short_close_is_in_the_journal_before_the_ledger_hears_of_it() -> None:
    short = CloseGroup(0, 4, COMPLETE, (0, 2), short=True)
    made, ports = carrier(short, CloseGroup(0, 5, COMPLETE, (0, 1)))
    assert ports.of("ledger") == [(CloseGroup(0, 5, COMPLETE, (0, 1)),)]
    assert ports.of("journal") == [(short,)]
    made.answered(CloseGroup(0, 5, COMPLETE, (0, 1)), CloseResult(CloseStatus.CLOSED, COMPLETE))
    assert len(ports.of("ledger")) == 1
    made.journalled()
    assert ports.of("ledger")[-1] == (short,)


def test_entries_decided_while_others_are_written_are_the_next_batch() -> None:
    made, ports = carrier(TOMBSTONE)
    core = made.core
    assert isinstance(core, Scripted)
    core.script = [JournalTombstone(4, "rejected", ""), JournalTombstone(5, "rejected", "")]
    made.step(1.0)
    assert [len(batch) for batch in ports.of("journal")] == [1]
    made.journalled()
    assert [len(batch) for batch in ports.of("journal")] == [1, 2]


def test_closes_run_together_and_nothing_else_does() -> None:
    closes = [CloseGroup(0, group, COMPLETE) for group in (1, 2)]
    made, ports = carrier(*closes, ReopenGroup(1), ScanLedger(1, 0))
    assert ports.of("ledger") == [tuple(closes)]
    for close in closes:
        made.answered(close, CloseResult(CloseStatus.CLOSED, COMPLETE))
    assert ports.of("ledger")[1:] == [(ReopenGroup(1),)]


def test_a_restarted_ledger_is_asked_nothing_that_was_meant_for_the_old_one() -> None:
    short = CloseGroup(0, 9, COMPLETE, (0, 1), short=True)
    made, ports = carrier(CloseGroup(0, 1, COMPLETE), ReopenGroup(1), short)
    made.ledger_restarted()
    made.step(1.0)
    made.answered(CloseGroup(0, 1, COMPLETE), CloseResult(CloseStatus.CLOSED, COMPLETE))
    made.journalled()
    asked = [operation for batch in ports.of("ledger")[1:] for operation in batch]
    assert all(isinstance(operation, ScanLedger) for operation in asked)


def test_what_is_kept_is_on_disk_before_the_answer() -> None:
    ports = Written()
    made = Carrier(Controller(SETTINGS, Rebuilt(view=LedgerModel().scan()), 0.0), ports, RestoredState())
    made.ask(PublishWeights(1, weights(1)))
    made.step(0.0)
    assert [name for name, _ in ports.effects if name != "ledger"] == ["keep"]
    made.kept()
    made.step(0.0)
    assert [name for name, _ in ports.effects if name != "ledger"] == ["keep", "tell_servers", "reply"]


def test_an_answer_that_came_twice_changes_nothing_the_second_time() -> None:
    made, _ = carrier(ScanLedger(1, 0), ReopenGroup(1))
    view = LedgerModel().scan()
    made.answered(ScanLedger(1, 0), view)
    made.answered(ScanLedger(1, 0), view)
    assert made.unanswered == (ReopenGroup(1),)


def test_every_hot_field_and_the_served_weights_survive_a_restart(tmp_path: Path) -> None:
    core = Controller(SETTINGS, Rebuilt(view=LedgerModel().scan()), 0.0)
    first = KeptFile(tmp_path, 1, lambda: 1)
    ports = Written()
    made = Carrier(core, ports, first.kept)
    made.ask(SetHotFields(max_steps=7, max_staleness=3, max_concurrent=5))
    made.step(0.0)
    first.write(ports.of("keep")[-1])
    again = KeptFile(tmp_path, 2, lambda: 2)
    settings, _ = rebuild(SETTINGS, JournalState(), again.kept, LedgerModel().scan(), [])
    assert (settings.max_steps, settings.max_staleness, settings.max_concurrent) == (7, 3, 5)


@pytest.mark.parametrize("field", ["max_steps", "max_staleness", "max_concurrent"])
def test_a_changed_job_file_wins_over_what_was_set_against_the_old_one(
    tmp_path: Path, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    core = Controller(SETTINGS, Rebuilt(view=LedgerModel().scan()), 0.0)
    first = KeptFile(tmp_path, 1, lambda: 1, "before")
    ports = Written()
    made = Carrier(core, ports, first.kept)
    made.ask(SetHotFields(**{field: 3}))
    made.step(0.0)
    first.write(ports.of("keep")[-1])
    same = KeptFile(tmp_path, 2, lambda: 2, "before")
    assert asdict(rebuild(SETTINGS, JournalState(), same.kept, LedgerModel().scan(), [])[0])[field] == 3
    changed = KeptFile(tmp_path, 3, lambda: 3, "after")
    assert rebuild(SETTINGS, JournalState(), changed.kept, LedgerModel().scan(), [])[0] == SETTINGS
    assert f"{field}=3 was set during the run" in caplog.text
    again = KeptFile(tmp_path, 4, lambda: 4, "after")
    assert again.kept == changed.kept


def test_what_an_old_controller_keeps_or_journals_is_refused_and_void(tmp_path: Path) -> None:
    newest = 1
    old = KeptFile(tmp_path, 1, lambda: newest)
    old.write(RestoredState(max_steps=4))
    journal = Journal(tmp_path / "journal.jsonl")
    journal.start(1)
    newest = 2
    new = KeptFile(tmp_path, 2, lambda: newest)
    Journal(tmp_path / "journal.jsonl").start(2)
    with pytest.raises(FencedError):
        old.write(RestoredState(max_steps=5))
    with pytest.raises(FencedError):
        write_entries(journal, [TOMBSTONE], 1, lambda: newest)
    assert new.kept.max_steps == KeptFile(tmp_path, 3, lambda: 3).kept.max_steps == 4
    assert not read_journal(tmp_path / "journal.jsonl").tombstones
