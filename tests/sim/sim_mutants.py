"""Rules of the platform, each broken by the change of one expression. A simulation that misses one proves nothing.

A mutant names a function, an expression that occurs in it once, and what stands there instead. The function's code is
compiled anew with the change and put in its place, wherever it was imported to.
"""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from areal.generation import core as agent_core
from areal.generation.core import AgentCore
from areal.ledger import gate
from areal.ledger.journal import Journal, apply
from areal.ledger.state import LedgerModel
from areal.rollout.controller import carrier, disk_writer, leasing
from areal.rollout.controller.book import Book
from areal.rollout.controller.carrier import Carrier
from areal.rollout.controller.core import Controller
from areal.rollout.controller.fleet import ServerFleet
from areal.rollout.controller.groups import GroupRanks, PromptGroup
from areal.rollout.controller.trainer_desk import TrainerDesk
from areal.rollout.worker.core import WorkerCore


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
        # ---- gate, ranks, η
        Mutant("gate: one step too many", gate.room, "policy.max_staleness + 1", "policy.max_staleness + 2"),
        Mutant("gate: one step too few", gate.room, "policy.max_staleness + 1", "policy.max_staleness + 0"),
        Mutant(
            "gate: the published version counts, not the routable",
            Controller.decide,
            "newest = self.fleet.newest_version",
            "newest = self.fleet.served.version if self.fleet.served else None",
        ),
        Mutant(
            "gate: a server that is not ready counts",
            ServerFleet.newest_version,
            "if server.routable",
            "if server.health",
        ),
        Mutant(
            "floor: frozen at admission",
            Book.floor,
            "self.ranks.rank(group.index)",
            "self.__dict__.setdefault('frozen', {}).setdefault(group.index, self.ranks.rank(group.index))",
        ),
        Mutant("floor: one too low", gate.floor, "rank // batch_groups", "rank // batch_groups - 1"),
        Mutant(
            "rank: one too low", GroupRanks.rank, "group - self.below(group)", "max(0, group - self.below(group) - 1)"
        ),
        Mutant(
            "rank: the group itself counts",
            GroupRanks.below,
            "bisect_left(self._sorted, group)",
            "bisect_left(self._sorted, group + 1)",
        ),
        Mutant("agent: no floor under the swap lock", AgentCore.entry, "self.version >= floor", "True"),
        Mutant("journal: not synced", Journal._append, "sync=True", "sync=False"),
        Mutant(
            "journal: a tombstone closes first",
            Book.end,
            "self._emit(JournalTombstone(",
            "self._emit(CloseGroup(self.epoch, group.index, verdict.reason)) or self._emit(JournalTombstone(",
        ),
        Mutant(
            "journal: credit comes first",
            Book.end,
            "group.phase = GroupPhase.DECIDED",
            "group.phase = GroupPhase.DECIDED; self.ranks.add(group.index, verdict.reason)",
        ),
        Mutant(
            "journal: a short close goes first",
            Carrier._carry,
            "CloseGroup(short=True)",
            "CloseGroup(short=True, epoch=-1)",
        ),
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
        Mutant("length: groups beyond a lowered end stay", Controller.decide, "if self.book.open and", "if False and"),
        Mutant(
            "gate: a waiting group keeps its slot",
            leasing.lease,
            "sum(1 for group in groups if group.worker and group.index not in stuck_indices)",
            "sum(1 for group in groups if group.worker)",
        ),
        Mutant(
            "journal: a cursor is acknowledged first",
            TrainerDesk._journal,
            "self._emit(JournalCursor(",
            "self._emit(CallAnswer(call.ticket)) or self._emit(JournalCursor(",
        ),
        Mutant(
            "journal: an old controller is told that it wrote",
            disk_writer.write_entries,
            "check_alive(fence, newest())",
            "None",
        ),
        Mutant(
            "kept: maxConcurrentRollouts forgotten",
            carrier.rebuild,
            "if kept.max_concurrent is None else kept.max_concurrent",
            "if True else 0",
        ),
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
        Mutant("ledger: take jumps over a gap", LedgerModel.take, "break", "continue"),
        Mutant(
            "cursor: an advance is not compared",
            TrainerDesk.advance,
            "pending or book.ranks.rank(call.next_group) != (call.step + 1) * book.settings.batch_groups",
            "False",
        ),
        Mutant(
            "η: the current one for every group",
            PromptGroup.eta,
            "if self.done:",
            "if True: return current\n    if self.done:",
        ),
        Mutant("cursor: a group below it is ended", Book.end, "group.index < self.cursor", "False"),
        Mutant(
            "restart: a ledger without the trainer's position counts",
            Controller._comparable,
            "view.low > self.book.cursor",
            "False",
        ),
        Mutant("restart: a ledger is not compared", Controller.take, "self.book.lost_data()", "None"),
        Mutant("weights: a refused version is not tried again", AgentCore.due, "now < refused.retry_at", "True"),
    )
}

SEEDS = 2_000  # of the mix that the schedules of the tests are drawn from

CAUGHT = {  # schedules until one notices, as last measured: where the search begins
    "gate: one step too many": 1,
    "gate: one step too few": 2,
    "gate: the published version counts, not the routable": 1,
    "gate: a server that is not ready counts": 1398,
    "floor: frozen at admission": 125,
    "floor: one too low": 273,
    "rank: one too low": 1,
    "rank: the group itself counts": 12,
    "agent: no floor under the swap lock": 412,
    "journal: not synced": 1,
    "journal: a tombstone closes first": 1,
    "journal: credit comes first": 12,
    "journal: a short close goes first": 18,
    "journal: an old controller's entries count": 485,
    "fence: ledger, trainer": 78,
    "fence: ledger, controller": 1109,
    "fence: controller, attach": 272,
    "fence: controller, advance": 1100,
    "fence: controller, beat": 992,
    "fence: publisher, call": 922,
    "fence: server": 299,
    "fence: worker": 299,
    "lease: released by a stranger": 93,
    "lease: a stranger's failure counts": 93,
    "sample: added to a closed group": 227,
    "sample: added again, overwrites": 122,
    "length: groups beyond a lowered end stay": 165,
    "gate: a waiting group keeps its slot": 412,
    "journal: a cursor is acknowledged first": 1469,
    "journal: an old controller is told that it wrote": 485,
    "kept: maxConcurrentRollouts forgotten": 2,
    "kept: weights are served before they are on disk": 1,
    "kept: hot fields hold before they are on disk": 2,
    "lease: a dead worker's groups stay with it": 3,
    "lease: a name's last holder is revoked": 12,
    "ledger: take jumps over a gap": 1,
    "cursor: an advance is not compared": 50,
    "restart: a ledger is not compared": 44,
    "weights: a refused version is not tried again": 17,
    "η: the current one for every group": 1099,
    "restart: a ledger without the trainer's position counts": 147,
}

EQUIVALENT = {  # what hides a change from every schedule
    "cursor: a group below it is ended": "what was taken is complete: none of its samples fails, its deadline rests",
    "fence: publisher, order": "the call's own fence is checked first, and within a fence a trainer publishes in order",
}
