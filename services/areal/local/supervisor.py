"""Runs a job's roles on this machine: starts them in order, restarts what dies, stops them in the opposite order.

Owns the life of all children and the decision when the run is over. A role starts when all it depends on are ready, and
stops before them, so that a trainer can still commit while the ledger is up. Every role but the trainer restarts by
itself (`areal.processes`); the trainer's gang restarts by epoch, under the same kind of budget, here. Promises that
`run` returns only when no process of the run is left. Knows nothing of what the roles do.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter

from areal.errors import BugError, Kind
from areal.processes import family
from areal.processes.core import TERMINAL, ChildPhase, RestartBy, RestartsExhausted
from areal.processes.supervise import ChildSpec, ChildStatus, ChildSupervisor

log = logging.getLogger("areal.local")


@dataclass(frozen=True)
class Member:
    """One row of the role table as a child, with its place in the order."""

    spec: ChildSpec
    role: str
    depends_on: Sequence[str] = ()


class RunResult(StrEnum):
    """How a run ended."""

    COMPLETE = "Complete"
    FAILED = "Failed"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run. `failed` is the child that ended it, if one did; `reason` is for people."""

    ended: RunResult
    failed: ChildStatus | None = None
    reason: str = ""
    killed: bool = False  # stopped without waiting for a clean end
    kind: Kind = Kind.INFRA  # whose fault it is, when no child ended it
    error: BaseException | None = None  # of the supervision itself: a child that can't be started


class Supervisor:
    """All children of one run. `stop` and `kill` may be called at any time from the same loop."""

    def __init__(self, members: Sequence[Member], *, final_role: str = "trainer") -> None:
        self._roles = {member.spec.name: member.role for member in members}
        self._needs = resolve(self._roles, {member.spec.name: member.depends_on for member in members})
        self._levels = stop_levels(self._needs)
        self._final = [member.spec.name for member in members if member.role == final_role]
        living: set[int] = set()
        self.children = {member.spec.name: ChildSupervisor(member.spec, living=living) for member in members}
        self._gangs = [name for name, child in self.children.items() if child.spec.policy.restart is RestartBy.EPOCH]
        self._change = asyncio.Event()
        self._asked_to_stop = ""
        self._asked_to_kill = False
        self._failure: RunOutcome | None = None
        for child in self.children.values():
            child.on_change = self._change.set

    def stop(self, reason: str = "it was asked to stop") -> None:
        """Stop cleanly: the trainer writes a checkpoint, then the others stop."""
        self._asked_to_stop = reason
        self._change.set()

    def kill(self) -> None:
        """Stop at once."""
        self._asked_to_kill = True
        self._change.set()

    def fail(self, reason: str, kind: Kind) -> None:
        """End the run as failed, for a reason that no exit code tells."""
        self._failure = self._failure or RunOutcome(RunResult.FAILED, None, reason, kind=kind)
        self._change.set()

    def waits_for(self, name: str) -> list[str]:
        """The rows that `name` can't start before, and that aren't ready."""
        if self.children[name].status.phase is not ChildPhase.IDLE:
            return []
        return sorted(other for other in self._needs[name] if not self._is_up(other))

    async def run(self) -> RunOutcome:
        """Start everything and supervise it to the end of the run."""
        family.adopt()
        lives = {name: asyncio.create_task(self._live(name), name=name) for name in self.children}
        gangs: set[asyncio.Task[None]] = set()
        try:
            for life in lives.values():
                life.add_done_callback(lambda _: self._change.set())
            while (outcome := self._outcome() or _broken(lives)) is None:
                self._change.clear()
                for name in self._gangs:
                    if self.children[name].status.awaits_epoch:
                        self._restart_gang(name, gangs)
                await self._change.wait()
            await self._end(outcome, lives)
            return (
                outcome if not self._asked_to_kill else RunOutcome(outcome.ended, outcome.failed, outcome.reason, True)
            )
        finally:
            for task in [*gangs, *lives.values()]:
                task.cancel()
            await asyncio.gather(*gangs, *lives.values(), return_exceptions=True)

    async def _live(self, name: str) -> None:
        child = self.children[name]
        while not all(self._is_up(other) for other in self._needs[name]):
            if child.status.phase in TERMINAL:
                return
            others = [self.children[other] for other in self._needs[name]]
            waits = [asyncio.ensure_future(one.changed()) for one in (child, *others)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        await child.run()

    def _is_up(self, name: str) -> bool:
        return self.children[name].status.phase in (ChildPhase.READY, ChildPhase.COMPLETE)

    def _outcome(self) -> RunOutcome | None:
        """Whether the run is over, and how."""
        if self._asked_to_stop or self._asked_to_kill:
            return RunOutcome(RunResult.STOPPED, None, self._asked_to_stop)
        if self._failure is not None:
            return self._failure
        statuses = {name: child.status for name, child in self.children.items()}
        for status in statuses.values():
            if status.phase is ChildPhase.FAILED:
                return RunOutcome(RunResult.FAILED, status, status.reason)
        if self._final and all(statuses[name].phase is ChildPhase.COMPLETE for name in self._final):
            return RunOutcome(RunResult.COMPLETE)
        return None

    def _restart_gang(self, name: str, gangs: set[asyncio.Task[None]]) -> None:
        if any(task.get_name() == name and not task.done() for task in gangs):
            return
        child = self.children[name]
        died = child.status
        reason = died.last_exit.reason if died.last_exit else died.reason
        granted = child.ask_restart()
        if isinstance(granted, RestartsExhausted):
            self._failure = RunOutcome(RunResult.FAILED, died, granted.reason)
            self._change.set()
            return

        async def later() -> None:
            await asyncio.sleep(granted.wait_s)
            if child.status.awaits_epoch:
                log.info("%s: %s; restarts in epoch %d", name, reason, died.epoch + 1)
                child.restart(died.epoch + 1)

        gangs.add(asyncio.create_task(later(), name=name))

    async def _end(self, outcome: RunOutcome, lives: dict[str, asyncio.Task[None]]) -> None:
        """Stop all children, dependents first. Asked to kill, at any moment of it, kill all."""
        for level in self._levels:
            for name in level:
                self.children[name].drain()
            pending = {lives[name] for name in level}
            while pending and not self._asked_to_kill:
                self._change.clear()
                asked = asyncio.create_task(self._change.wait())
                await asyncio.wait({*pending, asked}, return_when=asyncio.FIRST_COMPLETED)
                asked.cancel()
                pending = {task for task in pending if not task.done()}
            if self._asked_to_kill:
                break
        for child in self.children.values():
            child.kill()
        await asyncio.gather(*lives.values(), return_exceptions=True)


def _broken(lives: Mapping[str, asyncio.Task[None]]) -> RunOutcome | None:
    """The end when a child's supervision itself failed, as it does where nothing more can be opened or started."""
    for name, life in lives.items():
        if life.done() and (error := life.exception()) is not None:
            return RunOutcome(RunResult.FAILED, None, f"{name}: {error}", error=error)
    return None


def resolve(roles: Mapping[str, str], wants: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """For each row the rows it depends on. `roles`: row → role; `wants`: row → names of rows or roles."""
    resolved: dict[str, frozenset[str]] = {}
    for row, names in wants.items():
        found: set[str] = set()
        for name in names:
            matching = [other for other, role in roles.items() if name in (other, role) and other != row]
            if not matching:
                raise BugError(f"{row} depends on {name!r}, which is no role of this job")
            found.update(matching)
        resolved[row] = frozenset(found)
    return resolved


def stop_levels(needs: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Rows in groups: a group may stop when the groups before it have stopped."""
    sorter = TopologicalSorter({row: set(others) for row, others in needs.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise BugError(f"roles depend on each other in a circle: {' → '.join(error.args[1])}") from error
    levels: list[list[str]] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        levels.append(ready)
        sorter.done(*ready)
    # A row without dependents stops first, even one that started early.
    depth = dict.fromkeys(needs, 0)
    for level in reversed(levels):
        for row in level:
            for other in needs[row]:
                depth[other] = max(depth[other], depth[row] + 1)
    return [[row for row in needs if depth[row] == wanted] for wanted in sorted(set(depth.values()))]
