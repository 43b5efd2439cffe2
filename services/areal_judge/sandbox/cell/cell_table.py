"""A zygote's cells: made ahead, handed a run, ended, cleaned up.

Owns every process, slot and cgroup below one zygote, and the wall deadline of each run. Single-threaded: one poll loop
over the service's line, the cells' lines and SIGCHLD. It decides nothing about verdicts; it reports what happened.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from areal_judge.sandbox.cell import messages
from areal_judge.sandbox.cell.confinement import Confinement
from areal_judge.sandbox.cell.forks import Forks
from areal_judge.sandbox.cell.lines import CellLines
from areal_judge.sandbox.cell.means import Means
from areal_judge.sandbox.cell.messages import CellShape
from areal_judge.sandbox.cell.occupancy import Assignment, Cell, CellState
from areal_judge.sandbox.cell.place import CellPlace
from areal_judge.sandbox.kernel import calls as kernel
from areal_judge.sandbox.kernel.cgroups import CellGroup, Groups
from areal_judge.sandbox.values import DEFAULT_LIMITS, Layers

_FIRST_SHAPE = CellShape(False, False, DEFAULT_LIMITS.disk_bytes, DEFAULT_LIMITS.inodes)
_START_S = 20.0  # from hand-over to the first instruction; longer is a fault of ours
_WARDEN_S = 1.0  # a warden, which ends the program at once, has this long to bring files back and report
_DESCRIPTORS = 6  # order, three streams, channel, pipe for kept files
_SPARE_MEMORY = 64 << 20  # of a cell that has had no run yet
_SPARE_TASKS = 8
_REPORTS_A_LOOK = 64
_UNSEEN_S = (
    0.1  # CPU time of a group that nobody's usage has: less may be the kernel's rounding, or bringing files back
)
_ROUNDS = 200  # a program that forks faster than it is killed is stopped first; this bounds the effort
_PATIENCE_S = 2.0


@dataclass(eq=False)
class CellTable:
    """The loop. `serve` returns when the service has closed its line."""

    link: socket.socket
    means: Means
    layers: Layers
    confinement: Confinement
    rules: int | None
    groups: Groups
    first_uid: int
    spares: int
    _cells: dict[int, Cell] = field(default_factory=dict)
    _lines: CellLines = field(default_factory=CellLines)
    _by_run: dict[int, Cell] = field(default_factory=dict)
    _free_slots: list[int] = field(default_factory=list)
    _slots: int = 0
    _made: int = 0
    _recent: CellShape = _FIRST_SHAPE
    _unremoved: list[CellGroup] = field(default_factory=list)
    _failures: int = 0
    _reports: int = 0
    _resident: int = 0

    def serve(self) -> None:
        self._inside = self.means.namespaces and self.layers.namespaces
        self._forks = Forks(self._inside, self.means.return_to_pid_namespace, self._forget)
        woken = self._lines.listen_for_children()
        self.link.setblocking(False)
        self._lines.listen(self.link)
        # A fork takes milliseconds, so a spare is made only in a round in which nobody was heard: orders go first.
        # Signals of children coalesce, and one may come between the look and the wait: a round that only timed out
        # reaps, too, or a cell that died would be held until the next one dies.
        while True:
            short = self._short_of_spares()
            events = self._lines.wait(0 if short else self._patience_ms())
            died = not events and not short
            for descriptor in events:
                if descriptor == self.link.fileno():
                    if not self._hear_service():
                        self._end_all()
                        return
                elif descriptor == woken.fileno():
                    died = True
                    with contextlib.suppress(BlockingIOError):
                        woken.recv(4096)
                elif (cell := self._lines.cell(descriptor)) is not None:
                    self._hear_cell(cell, descriptor)
            if died:
                self._reap()
            self._keep_deadlines()
            if not events and short:
                self._make(self._recent)
            self._drop_extra_spares()

    def _forget(self) -> None:
        """In a forked child: a program can walk the frames above it to this object, and to a cell of this loop."""
        for cell in self._cells.values():
            cell.run = None
        vars(self).clear()

    # ---- the service's line

    def _hear_service(self) -> bool:
        while True:
            try:
                message, descriptors = messages.receive(self.link, _DESCRIPTORS)
            except BlockingIOError:
                return True
            if message is None:
                return False
            if message["op"] == "run":
                self._assign(Assignment(message, descriptors))
            elif message["op"] == "kill":
                found = self._by_run.get(message["id"])
                if found is not None:
                    self._kill(found, message["reason"])

    def _assign(self, run: Assignment) -> None:
        self._recent = shape = CellShape(*run.order["shape"])
        spares = [cell for cell in self._cells.values() if cell.spare and cell.shape == shape]
        ready = next((cell for cell in spares if cell.state is CellState.READY), None)
        chosen = ready or (spares[0] if spares else self._make(shape))
        if chosen is None:
            run.close()
            self._tell({"event": "ended", "id": run.order["id"], "failure": "fork: no process could be made"})
            return
        chosen.run = run
        chosen.cold = ready is None
        self._by_run[run.order["id"]] = chosen
        if ready is not None:
            self._hand_over(chosen)

    def _assign_again(self, cell: Cell) -> None:
        """Gives another cell the run that this one was to have, if any."""
        run, cell.run = cell.run, None
        if run is not None:
            del self._by_run[run.order["id"]]
            self._assign(run)

    def _tell(self, message: dict[str, Any]) -> None:
        self.link.setblocking(True)
        try:
            messages.send(self.link, message)
        except (BrokenPipeError, ConnectionError):
            os._exit(0)
        finally:
            self.link.setblocking(False)

    # ---- cells

    def _make(self, shape: CellShape) -> Cell | None:
        """A cell with a program in the making: one that has none, or a new one."""
        idle = next((cell for cell in self._cells.values() if cell.idle), None)
        if idle is None:
            return self._make_new(shape)
        assert idle.control is not None
        try:
            messages.send(idle.control, {"make": shape})
        except OSError:
            self._kill(idle, "setup")
            return self._make_new(shape)
        idle.shape, idle.state = shape, CellState.MAKING
        return idle

    def _make_new(self, shape: CellShape) -> Cell | None:
        slot = heapq.heappop(self._free_slots) if self._free_slots else self._slots
        self._slots = max(self._slots, slot + 1)
        self._made += 1
        group, joins = None, []
        mine, entry = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        my_control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            if self.groups:
                group = self.groups.make(f"c{os.getpid()}-{self.first_uid}-{self._made}")
                group.limit(_SPARE_MEMORY, _SPARE_TASKS)
                joins = group.joins()
            uid = self.first_uid + slot
            place = CellPlace(shape, uid, self.means, self.layers, self.confinement, self.rules, tuple(joins))
            pid = self._forks.fork(place, control, entry)
        except OSError as error:
            self._failures += 1
            self._tell({"event": "trouble", "message": f"no cell could be made: {error}"})
            if group is not None:
                group.close()
            heapq.heappush(self._free_slots, slot)
            for end in (mine, my_control):
                end.close()
            return None
        finally:
            for descriptor in joins:
                os.close(descriptor)
            entry.close()
            control.close()
        made = Cell(pid, shape, slot, mine, my_control, group)
        self._cells[pid] = made
        for end in (mine, my_control):
            self._lines.add(end, made)
        return made

    def _hand_over(self, chosen: Cell) -> None:
        run, entry, control = chosen.run, chosen.entry, chosen.control
        assert run is not None
        assert entry is not None
        order = run.order
        chosen.state = CellState.RUNNING
        chosen.handed = time.monotonic()
        chosen.deadline = chosen.handed + min(order["wall_s"], _START_S)
        if not order["tell"]:
            self._lines.leave_unheard(entry)  # when its program began is heard when it matters
        streams = 4 + order["channel"]
        try:
            if chosen.group is not None:
                chosen.group.limit(order["memory"], order["tasks"])
                chosen.group_before_s = chosen.group.cpu_s() if chosen.shape.fork else None
            if order["keep"] and self._inside and control is not None:
                messages.send(control, {"keep": order["keep"], "bytes": order["keep_bytes"]}, run.descriptors[streams:])
            messages.send(entry, messages.RUN, run.descriptors[:streams])
        except OSError as error:
            chosen.failure = f"hand-over: {error}"
            self._kill(chosen, "setup")
        run.close()

    def _hear_cell(self, cell: Cell, descriptor: int) -> bool:
        """One message of a cell; False when there was none."""
        line = cell.entry if cell.entry is not None and cell.entry.fileno() == descriptor else cell.control
        if line is None:
            return False
        try:
            message, _ = messages.receive(line)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            message = None
        if message is None:
            self._lines.forget(line)
            if line is cell.entry:
                cell.entry = None
            else:
                cell.control = None
        elif "ready" in message:
            cell.state = CellState.READY
            self._failures = 0
            if cell.alive and not cell.ending and cell.group is not None and cell.group.laden():
                self._end(cell)
                self._assign_again(cell)
            elif cell.run is not None:
                self._hand_over(cell)
        elif "failed" in message:
            cell.failure = message["failed"]
        elif "go" in message:
            cell.went, cell.cpu_before_s = message["go"], message["cpu_s"]
            assert cell.run is not None
            cell.deadline = message["go"] + cell.run.order["wall_s"]
            if cell.run.order["tell"]:
                self._tell({"event": "went", "id": cell.run.order["id"]})
        elif "status" in message:
            self._report(cell, message)
        return True

    def _drain(self, line: socket.socket | None, cell: Cell) -> None:
        """Hears all that waits on a line."""
        while line is not None and self._lines.cell(line.fileno()) is not None:
            if not self._hear_cell(cell, line.fileno()):
                return

    # ---- ends

    def _kill(self, cell: Cell, reason: str) -> None:
        if cell.reason or not cell.alive:
            return
        self._drain(cell.entry, cell)  # its program may have begun meanwhile
        cell.reason = reason
        cell.deadline = None
        if self._inside and cell.state is CellState.RUNNING and cell.went is not None:
            cell.kill_at = time.monotonic() + _WARDEN_S
            os.kill(cell.pid, signal.SIGTERM)
        else:
            self._end(cell)

    def _end(self, cell: Cell) -> None:
        """Ends a whole cell. It is reaped later; what it still has said counts."""
        cell.ending = True
        cell.kill_at = None
        os.kill(cell.pid, signal.SIGKILL)

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        for cell in list(self._cells.values()):
            if cell.kill_at is not None and now >= cell.kill_at:
                self._end(cell)
            elif cell.deadline is not None and now >= cell.deadline:
                self._look_at_deadline(cell, now)
        if self._unremoved:
            self._unremoved = [group for group in self._unremoved if not group.close()]

    def _look_at_deadline(self, cell: Cell, now: float) -> None:
        """A run's time counts from its first instruction: the deadline so far may be the earliest there can be."""
        self._drain(cell.entry, cell)
        if cell.state is not CellState.RUNNING or cell.deadline is None:
            return
        if cell.went is None:
            cell.deadline = cell.handed + _START_S
        if now >= cell.deadline:
            self._kill(cell, "wall" if cell.went is not None else "setup")

    def _patience_ms(self) -> int:
        moments = [at for cell in self._cells.values() for at in (cell.deadline, cell.kill_at) if at is not None]
        if self._unremoved:
            moments.append(time.monotonic() + 0.02)
        if self._failures:
            moments.append(time.monotonic() + 0.5)
        return max(0, int((min(moments) - time.monotonic()) * 1000) + 1) if moments else 60_000

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            cell = self._cells.pop(pid, None)
            if cell is None:
                continue  # an orphan of a run
            cell.alive = False
            self._drain(cell.entry, cell)
            self._drain(cell.control, cell)
            if not self._inside and self.layers.kill_all and (cell.shape.fork or not self.layers.seccomp):
                _end_orphans(os.getpid(), frozenset(self._cells))
            if cell.state is not CellState.REPORTED:
                cpu_s = usage.ru_utime + usage.ru_stime
                report = {"cpu_s": cpu_s, "rss": usage.ru_maxrss << 10, "ended": time.monotonic(), "full": False}
                self._report(cell, report | {"status": status, "lost": self._inside})
            if cell.group is not None and not cell.group.close():
                self._unremoved.append(cell.group)
            heapq.heappush(self._free_slots, cell.slot)

    def _report(self, cell: Cell, report: dict[str, Any]) -> None:
        """Tells the service how a run ended; nothing of it is alive."""
        if cell.state is CellState.REPORTED:
            return
        self._drain(cell.entry, cell)
        running = cell.state
        cell.state = CellState.REPORTED
        cell.deadline = cell.kill_at = None
        if running is CellState.MAKING and cell.used and not cell.reason:
            self._assign_again(cell)  # what its last program left may be why
        run = cell.run
        if run is None:
            if running is CellState.MAKING and not cell.reason:
                self._failures += 1
                self._tell({"event": "trouble", "message": cell.failure or f"a cell ended with {report['status']}"})
            self._free(cell)
            return
        run.close()
        del self._by_run[run.order["id"]]
        if cell.went is None and not cell.failure and cell.reason in ("", "setup"):
            cell.failure = f"the cell ended before its program began ({report['status']})"
        usage = cell.group.usage() if cell.group is not None else None
        report["cpu_s"] += _unseen_s(cell, report)
        report["cpu_all_s"] = report["cpu_s"]
        report["cpu_s"] = max(0.0, report["cpu_s"] - cell.cpu_before_s)
        self._tell({
            "event": "ended", "id": run.order["id"], "failure": cell.failure, "reason": cell.reason,
            "went": cell.went, "cold": cell.cold, "zygote_rss": self._resident_bytes(),
            "peak": usage.memory_peak_bytes if usage else None, "oom": bool(usage and usage.out_of_memory),
            "tasks_hit": bool(usage and usage.out_of_tasks), **report,
        })  # fmt: skip
        cell.run = None
        self._free(cell)

    def _free(self, cell: Cell) -> None:
        """After a report: a warden whose program began as it should may have another, any other cell ends.

        Measured at T3 on two busy cores, medians of seven interleaved rounds: 136 runs a second and a start after
        2.8 ms with reuse, 73 and 6.8 ms when each cell ends with its run.
        """
        if not cell.alive or cell.ending or not self._inside:
            return
        if cell.went is not None and cell.control is not None and cell.entry is not None:
            cell.rest()
            self._lines.hear_again(cell.entry)
        else:
            self._end(cell)

    def _resident_bytes(self) -> int:
        """The most memory that this process held, looked at now and then."""
        if self._reports % _REPORTS_A_LOOK == 0:
            self._resident = kernel.peak_resident_bytes()
        self._reports += 1
        return self._resident

    def _end_all(self) -> None:
        for pid in self._cells:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._cells:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if not self._inside and self.layers.kill_all:
            _end_orphans(os.getpid(), frozenset())
        for cell in self._cells.values():
            if cell.group is not None:
                cell.group.close()

    # ---- spares

    def _short_of_spares(self) -> bool:
        if self._failures > 3:
            return False
        return sum(cell.spare and cell.shape == self._recent for cell in self._cells.values()) < self.spares

    def _drop_extra_spares(self) -> None:
        others = [cell for cell in self._cells.values() if cell.spare and cell.shape != self._recent]
        idle = [cell for cell in self._cells.values() if cell.idle]
        for cell in (*others[self.spares :], *idle[self.spares :]):
            self._kill(cell, "unneeded")


def _unseen_s(cell: Cell, report: dict[str, Any]) -> float:
    """CPU time of the run that its processes' usage lacks: of children whose parent ignores how they end."""
    own_s = report.pop("own_s", 0.0)
    if cell.group is None or cell.group_before_s is None:
        return 0.0
    unseen = (cell.group.cpu_s() or 0.0) - cell.group_before_s - report["cpu_s"] - own_s
    return unseen if unseen > _UNSEEN_S else 0.0


def _end_orphans(parent: int, known: frozenset[int]) -> None:
    """Kills and reaps every descendant of `parent` that isn't `known` or below one of those."""
    until = time.monotonic() + _PATIENCE_S
    for _ in range(_ROUNDS):
        found = _descendants(parent, known)
        if not found or time.monotonic() > until:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):  # none of them forks while the others are killed
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        for pid in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _descendants(parent: int, known: frozenset[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found: list[int] = []
    todo = [pid for pid in children.get(parent, []) if pid not in known]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found
