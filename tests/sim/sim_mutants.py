"""Rules of the platform, each broken by the change of one expression. A simulation that misses one proves nothing.

A mutant names a function, an expression that occurs in it once, and what stands there instead. The function's code is
compiled anew with the change and put in its place, wherever it was imported to.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any

from areal.generation import core as agent_core
from areal.generation.core import AgentCore
from areal.ledger import gate
from areal.ledger.consumer import Consumer
from areal.ledger.journal import Journal, apply
from areal.ledger.state import LedgerModel
from areal.rollout.controller import carrier, disk_writer, leasing
from areal.rollout.controller.book import Book
from areal.rollout.controller.carrier import Carrier
from areal.rollout.controller.core import Controller
from areal.rollout.controller.fleet import ServerFleet
from areal.rollout.controller.groups import PromptGroup
from areal.rollout.controller.order import TrainOrder
from areal.rollout.controller.token_book import TokenBook
from areal.rollout.controller.trainer_desk import TrainerDesk
from areal.rollout.worker.core import WorkerCore
from simulation.scenario import Aim, Fault, FaultKind, Point, Scenario, draw


@dataclass(frozen=True)
class Mutant:
    """In `function`, `new` stands where `old` stood once."""

    name: str
    function: Any
    old: str
    new: str

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While this is open the rule is broken."""
        function = _plain(self.function)
        whole = function.__code__
        function.__code__ = self._changed(function)
        try:
            yield
        finally:
            function.__code__ = whole

    def _changed(self, function: FunctionType) -> CodeType:
        source = textwrap.dedent(inspect.getsource(function))
        source = source[source.index("def ") :]
        assert source.count(self.old) == 1, f"{self.name}: {self.old!r} occurs {source.count(self.old)} times"
        names = dict(function.__globals__)
        flags = __future__.annotations.compiler_flag
        exec(compile(source.replace(self.old, self.new), "<mutant>", "exec", flags), names)
        code: CodeType = names[function.__name__].__code__
        assert code.co_freevars == function.__code__.co_freevars
        return code


def _plain(function: Any) -> FunctionType:
    return function.fget if isinstance(function, property) else function


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        # ---- gate, order, bound
        Mutant("gate: one step too many", gate.room, "policy.ahead + 1", "policy.ahead + 2"),
        Mutant("gate: one step too few", gate.room, "policy.ahead + 1", "policy.ahead + 0"),
        Mutant(
            "gate: the published version counts, not the routable",
            Controller.decide,
            "versions = self.fleet.versions",
            "versions = range(served.version, served.version + 1) if (served := self.fleet.served) else range(0)",
        ),
        Mutant(
            "gate: a server that is not ready counts", ServerFleet.versions, "if server.routable", "if server.health"
        ),
        Mutant("order: does not wait", gate.choose_complete, "not in_time(late, next_step + 1, batch_groups)", "False"),
        Mutant(
            "order: waits one batch too late",
            gate.choose_complete,
            "in_time(late, next_step + 1,",
            "in_time(late, next_step,",
        ),
        Mutant("order: the first by index", gate.choose_complete, "sorted((step, group) for", "sorted((0, group) for"),
        Mutant("order: the least urgent first", gate.choose_complete, "sorted((step,", "sorted((-step,"),
        Mutant(
            "order: an incomplete group is chosen",
            TrainOrder.pick,
            "for g in settled if groups[g].phase is GroupPhase.CLOSED)",
            "for g in settled)",
        ),
        Mutant(
            "begun: whatever became of it",
            Consumer.offer,
            "all(group in complete for group in",
            "all(True for group in",
        ),
        Mutant("begun: again and again", Consumer.begin, "group.group not in self._begun", "group.complete"),
        Mutant(
            "begun: counts as the batch",
            Consumer.offer,
            "self.state.step, complete,",
            "self.state.step, complete[len(begun):],",
        ),
        Mutant("begun: not forgotten", Consumer.trained, "self._begun = {}", "self._begun = self._begun"),
        Mutant("begun: what later batches may have", TrainOrder.due_now, "group.due <= self.chosen", "group.due >= 0"),
        Mutant("grant: one group too many", gate.grant, "+ 1 <= batch", "<= batch"),
        Mutant("grant: later deadlines are not looked at", gate.grant, "if step > mine", "if False"),
        Mutant("grant: nothing is looked at", gate.grant, "+ 1 <= batch_groups * (step - next_step + 1)", ">= 0"),
        Mutant("grant: no place in admission order", TrainOrder.floor_for, "if settings.admission_order", "if False"),
        Mutant(
            "floor: the servers' lowest after a loss",
            leasing._may_start,
            "elif group.due is None:",
            "elif not group.working and not group.done:",
        ),
        Mutant(
            "floor: of a chosen group, one too low",
            leasing._may_start,
            "(group.due or 0) - bound",
            "(group.due or 0) - bound - 1",
        ),
        Mutant(
            "batch: forgotten at a restart", carrier.rebuild, "batches=journal.batches", "batches=journal.batches[:-1]"
        ),
        Mutant(
            "batch: the ledger hears of it first",
            Book.choose,
            "self._emit(decisions.JournalBatch(",
            "self._emit(decisions.AssignBatch(order.chosen, batch)) or self._emit(decisions.JournalBatch(",
        ),
        Mutant(
            "batch: not told again to a ledger that lost it",
            Book._assign,
            "freed or view.batches.get(step) != batch",
            "False",
        ),
        Mutant(
            "batch: a chosen group is filtered", Book._close_whole, "and group.index in self.order.waiting", "and True"
        ),
        Mutant("due: a complete group's is not raised", Book.closed, "group.made_due", "group.due"),
        Mutant(
            "due: another controller's groups have none",
            Book._know_due,
            "not group.done or group.due is not None",
            "True",
        ),
        Mutant(
            "due: one too late",
            PromptGroup.made_due,
            "figures.oldest_version + figures.max_staleness",
            "figures.oldest_version + figures.max_staleness + 1",
        ),
        Mutant("agent: no floor under the swap lock", AgentCore.entry, "self.version >= floor", "True"),
        Mutant("journal: not synced", Journal._append, "sync=True", "sync=False"),
        Mutant(
            "journal: a tombstone closes first",
            Book.end,
            "self._emit(decisions.JournalTombstone(",
            "self._emit(decisions.CloseGroup(self.epoch, group.index, verdict.reason))"
            " or self._emit(decisions.JournalTombstone(",
        ),
        Mutant(
            "journal: credit comes first",
            Book.end,
            "group.phase = GroupPhase.DECIDED",
            "group.phase = GroupPhase.DECIDED; self.order.tombstones.add(group.index, verdict.reason)",
        ),
        Mutant("journal: a short close goes first", Carrier._carry, " and not decision.short", ""),
        Mutant("journal: an old controller's entries count", apply, "if fence < state.fence:", "if False:"),
        Mutant("fence: ledger, trainer", LedgerModel._check_trainer, "fence < self.trainer_fence", "False"),
        Mutant("fence: ledger, controller", LedgerModel._check_controller, "fence < self.controller_fence", "False"),
        Mutant("fence: controller, attach", TrainerDesk.attach, "call.fence < self.fence", "False"),
        Mutant("fence: controller, advance", TrainerDesk.advance, "call.fence < self.fence", "False"),
        Mutant("fence: controller, beat", TrainerDesk.beat, "report.fence != self.fence", "False"),
        Mutant("fence: publisher, call", TrainerDesk.publish, "call.fence < self.fence", "False"),
        Mutant(
            "fence: publisher, order",
            ServerFleet.follow,
            "(weights.fence, weights.version) > (served.fence, served.version)",
            "True",
        ),
        Mutant(
            "fence: server",
            agent_core.takes,
            "candidate.fence > held.fence or (candidate.fence == held.fence and candidate.version > held.version)",
            "candidate != held",
        ),
        # ---- tokens
        Mutant("tokens: a batch is counted again", TokenBook.count_batches, "self._ended[_BATCHES] : ", "0 : "),
        Mutant("tokens: an ended group isn't counted", Book.journalled, "if index in self.order.waiting:", "if False:"),
        Mutant("tokens: a replaced process is forgotten", TokenBook.told, "if before != incarnation:", "if False:"),
        Mutant("tokens: one that moved is served, too", TokenBook.ended, "sample.sampled - moved", "sample.sampled"),
        # ---- fences of workers
        Mutant("fence: worker", WorkerCore.hears, "fence < self.fence", "False"),
        # ---- samples and leases
        Mutant("lease: released by a stranger", Book.given_back, "group.worker == worker", "True"),
        Mutant("lease: a stranger's failure counts", Book.failure, 'group.worker not in ("", worker)', "False"),
        Mutant(
            "sample: added to a closed group",
            LedgerModel.add_sample,
            "group < self.low or group in self.closed",
            "group < self.low",
        ),
        Mutant("sample: added again, overwrites", LedgerModel.add_sample, "stored is not None", "False"),
        Mutant(
            "length: groups beyond a lowered end stay", Controller.decide, "len(book.order.waiting) > most", "False"
        ),
        Mutant("gate: a waiting group keeps its slot", leasing.lease, "held.total() - len(parked)", "held.total()"),
        Mutant(
            "journal: an old controller is told that it wrote",
            disk_writer.write_entries,
            "check_alive(fence, newest())",
            "None",
        ),
        Mutant("kept: maxConcurrentRollouts forgotten", carrier.rebuild, '"max_concurrent", ', ""),
        Mutant(
            "kept: weights are served before they are on disk",
            Controller._next_calls,
            "self.desk.publish(call)",
            "self.desk.publish(call) and (self.desk.serve(call) or True)",
        ),
        Mutant(
            "kept: hot fields hold before they are on disk",
            Controller._next_calls,
            "self._set_hot(call)",
            "self._set_hot(call) and (setattr(self._position, 'settings', _changed(self.settings, call)) or True)",
        ),
        Mutant("lease: a dead worker's groups stay with it", Book.orphan, "self.groups[g].worker == worker", "False"),
        Mutant("lease: a name's last holder is revoked", Controller._worker, "revoke=not fresh", "revoke=True"),
        Mutant("ledger: a batch is taken with a hole", LedgerModel.take, "if values.TRAINED in outcomes:", "if False:"),
        Mutant(
            "advance: a batch is not compared", TrainerDesk.advance, "not book.whole(call.step, call.groups)", "False"
        ),
        Mutant(
            "restart: a ledger without the trainer's position counts",
            Controller._comparable,
            "view.committed > self._position.step and",
            "False and",
        ),
        Mutant("restart: a ledger is not compared", Controller.take, "self.book.lost_data()", "None"),
        Mutant("weights: a refused version is not tried again", AgentCore.due, "now < refused.retry_at", "True"),
    )
}

SEEDS = 2_000


@dataclass(frozen=True)
class SimLook:
    """Where to look for a broken rule: a scenario as `draw` gives it, with these fields changed."""

    schedules: int  # until one notices, as last measured: the search begins at the last of them
    aim: Aim | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def scenario(self, seed: int) -> Scenario:
        """The world of a seed."""
        return replace(draw(seed, self.aim), **self.changes)


def _strike(at_s: float, *kinds: tuple[FaultKind, float]) -> tuple[Fault, ...]:
    """Faults after the second committed checkpoint."""
    return tuple(Fault(at_s, kind, 0, value, Point.COMMITTED, 2) for kind, value in kinds)


FALLEN = {  # a trainer goes back below the version that groups in work are meant for
    "max_staleness": 0, "ahead": 0, "publish_interval": 1, "checkpoint_interval": 1, "max_steps": 5, "batch_groups": 2,
    "capacity": 8, "max_concurrent": 8, "workers": 1, "servers": 1, "filter_share": 0.0, "reject_share": 0.0,
    "slow_share": 0.0, "sample_s": 1.0, "train_s": 0.3, "load_s": 0.05, "shared": False,
}  # fmt: skip

CAUGHT = {
    "begun: whatever became of it": SimLook(44),
    "begun: counts as the batch": SimLook(2),
    "gate: one step too many": SimLook(17),
    "gate: one step too few": SimLook(2),
    "gate: the published version counts, not the routable": SimLook(1),
    "gate: a server that is not ready counts": SimLook(5),
    "agent: no floor under the swap lock": SimLook(
        3,
        changes=FALLEN
        | {
            "slow_share": 0.6,
            "train_s": 1.0,
            "servers": 1,
            "faults": _strike(0.5, (FaultKind.ROLL_BACK, 0.0), (FaultKind.LATE_ORDERS, 6.0)),
        },
    ),
    "tokens: a batch is counted again": SimLook(1),
    "tokens: an ended group isn't counted": SimLook(2),
    "tokens: a replaced process is forgotten": SimLook(28),
    "tokens: one that moved is served, too": SimLook(3),
    "journal: not synced": SimLook(1),
    "journal: a tombstone closes first": SimLook(1),
    "journal: credit comes first": SimLook(59),
    "journal: a short close goes first": SimLook(15),
    "journal: an old controller's entries count": SimLook(243),
    "fence: ledger, trainer": SimLook(19),
    "fence: ledger, controller": SimLook(54),
    "fence: controller, attach": SimLook(155),
    "fence: controller, advance": SimLook(870),
    "fence: controller, beat": SimLook(1011),
    "fence: publisher, call": SimLook(11),
    "fence: server": SimLook(
        3,
        changes={
            "train_s": 0.05,
            "load_s": 0.05,
            "checkpoint_interval": 1,
            "publish_interval": 1,
            "max_steps": 6,
            "servers": 2,
            "shared": False,
            "faults": _strike(0.0, (FaultKind.PAUSE_CONTROLLER, 1.5), (FaultKind.ROLL_BACK, 0.0)),
        },
    ),
    "fence: worker": SimLook(220),
    "sample: added to a closed group": SimLook(53),
    "sample: added again, overwrites": SimLook(76),
    "length: groups beyond a lowered end stay": SimLook(226),
    "gate: a waiting group keeps its slot": SimLook(
        2, changes=FALLEN | {"max_concurrent": 2, "faults": _strike(0.3, (FaultKind.ROLL_BACK, 0.0))}
    ),
    "journal: an old controller is told that it wrote": SimLook(243),
    "kept: maxConcurrentRollouts forgotten": SimLook(31),
    "kept: weights are served before they are on disk": SimLook(1),
    "kept: hot fields hold before they are on disk": SimLook(14),
    "lease: a dead worker's groups stay with it": SimLook(14),
    "lease: a name's last holder is revoked": SimLook(76),
    "restart: a ledger is not compared": SimLook(59, Aim.POSITION),
    "weights: a refused version is not tried again": SimLook(30),
    "restart: a ledger without the trainer's position counts": SimLook(2, Aim.POSITION),
    "order: does not wait": SimLook(51),
    "order: waits one batch too late": SimLook(1, Aim.TAIL),
    "order: the least urgent first": SimLook(10),
    "order: an incomplete group is chosen": SimLook(6),
    "grant: one group too many": SimLook(65),
    "grant: nothing is looked at": SimLook(65),
    "grant: no place in admission order": SimLook(2592),
    "floor: the servers' lowest after a loss": SimLook(16),
    "batch: forgotten at a restart": SimLook(10),
    "batch: the ledger hears of it first": SimLook(1),
    "due: another controller's groups have none": SimLook(9),
    "due: one too late": SimLook(54),
    "batch: not told again to a ledger that lost it": SimLook(30),
    "order: the first by index": SimLook(568),
    "grant: later deadlines are not looked at": SimLook(210),
    "floor: of a chosen group, one too low": SimLook(7, Aim.TAIL),
    "batch: a chosen group is filtered": SimLook(30),
    "due: a complete group's is not raised": SimLook(1159),
    "advance: a batch is not compared": SimLook(4, Aim.PART_IN_HAND),
}

EQUIVALENT = {  # what hides a change from every schedule
    "begun: again and again": "the gradient isn't that of the batch's groups, so it is taken anew of all",
    "begun: not forgotten": "a batch doesn't have the groups of the one before, so its gradient is taken anew of all",
    "begun: what later batches may have": "a group that the batch doesn't have costs its gradient and nothing else",
    "lease: released by a stranger": "a sample counts once, whoever makes it: it is made twice (test_controller_book)",
    "lease: a stranger's failure counts": "a try more for a group that another worker makes (test_controller_book)",
    "ledger: a batch is taken with a hole": "the controller compares what was taken (test_ledger_consumer)",
    "fence: publisher, order": "the call's own fence is checked first, and within a fence a trainer publishes in order",
}
