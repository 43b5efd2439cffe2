"""Stall matrix: faults put into a run that works, each with the cause and the role that `areal why` must name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil
from areal.observe.causes import why
from areal.observe.live import Diagnosis, read_live
from areal.plan.layout import RunLayout
from support.job_run import VICTIMS, JobRun

WITHIN_S = 10.0  # the goal
PATIENCE_S = 60.0  # where only the answer counts: machines of tests are loaded
BLOCKING = Path(__file__).with_name("blocking")
ROLES = {  # role of the matrix → as the run names it
    "redis": "redis", "reward": "reward-custom", "controller": "controller", "agent": "generation-0",
    "engine": "generation-0", "worker": "worker-0", "trainer": "trainer",
}  # fmt: skip

_BLACKHOLED = {  # whose ports lose every packet → what may be said
    "redis": {"store-silent"},
    "controller": {"role-silent"},
    "agent": {"role-silent", "no-server"},
    "engine": {"engine-silent", "no-server", "old-version"},
    "reward": {"role-silent"},
    "worker": {"role-silent"},
    "trainer": {"role-silent"},
}
_USER_CODE = {"trainer": "advantages", "reward": "reward"}


@dataclass(frozen=True)
class Cell:
    """A fault of one role. `wanted`: which causes are right; `named`: which roles."""

    fault: str
    role: str
    wanted: frozenset[str]
    named: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.fault} × {self.role}"


@dataclass(frozen=True)
class Outcome:
    """What was said within the time, and how late the right thing was."""

    cell: Cell
    said: str
    after_s: float | None

    @property
    def right(self) -> bool:
        return self.after_s is not None


def cells() -> list[Cell]:
    """Every fault that can be put into a process from outside, with every role that it can befall."""
    everyone = [Cell("SIGSTOP", role, frozenset({"role-stopped"}), frozenset({name})) for role, name in ROLES.items()]
    loops = [
        Cell("blocked event loop", role, frozenset({"role-silent"}), frozenset({ROLES[role]}))
        for role in ("controller", "worker", "agent", "reward")
    ]
    loops.append(
        Cell("blocked event loop", "engine", frozenset({"engine-silent", "no-server"}), frozenset({"generation-0"}))
    )
    dead = frozenset({"role-killed", "role-starts"})
    mortal = ("redis", "worker", "controller", "reward", "agent", "trainer")
    deaths = [Cell("SIGKILL", role, dead, frozenset({ROLES[role]})) for role in mortal]
    deaths.append(Cell("SIGKILL", "engine", dead | {"no-server"}, frozenset({"generation-0"})))
    blackholes = [
        Cell("blackholed edge", role, frozenset(causes), frozenset({ROLES[role]}))
        for role, causes in _BLACKHOLED.items()
        if os.geteuid() == 0 and shutil.which("iptables")
    ]
    deadlocks = [
        Cell("deadlock in user code", "trainer", frozenset({"user-code"}), frozenset({"trainer"})),
        Cell("deadlock in user code", "reward", frozenset({"user-code"}), frozenset({"reward-custom"})),
    ]
    refused = Cell("no engine at the version", "engine", frozenset({"old-version"}), frozenset({"generation-0"}))
    above = Cell("SIGSTOP", "areal run", frozenset({"run-silent"}), frozenset({"areal run"}))
    return [*everyone, above, *loops, *deaths, *blackholes, *deadlocks, refused]


class Matrix:
    """Puts faults into one run, one after another, and listens to what `areal why` says."""

    def __init__(self, run: JobRun, flag: Path) -> None:
        self._run = run
        self._flag = flag
        self._layout = RunLayout(run.run_dir)

    def said(self) -> Diagnosis:
        live = read_live(self._layout.live)
        return why(live) if live is not None else Diagnosis("no-live", "nothing is known")

    def step(self) -> int:
        """Batches trained as what `areal why` reads says; the trainer's own file is up to a second ahead."""
        live = read_live(self._layout.live)
        return live.step if live is not None else 0

    def listen(self, seconds: float) -> list[Diagnosis]:
        """What is said of a run in which nothing is wrong; once a second."""
        heard = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            heard.append(self.said())
            time.sleep(1.0)
        return heard

    def try_cell(self, cell: Cell, within_s: float = WITHIN_S) -> Outcome:
        """Put the fault in, listen for as long as the right answer may take, take it out, and wait until it works."""
        victim = self._victim(cell.role)
        undo = self._inject(cell, victim)
        began, answer, after = time.monotonic(), self.said(), None
        try:
            while after is None and time.monotonic() < began + within_s:
                time.sleep(0.25)
                if cell.fault == "SIGKILL":
                    self._kill_again(cell.role)
                answer = self.said()
                if answer.cause in cell.wanted and answer.role in cell.named:
                    after = time.monotonic() - began
        finally:
            undo()
        self._works_again(cell)
        return Outcome(cell, answer.sentence, after)

    def _kill_again(self, role: str) -> None:
        """A role that dies once is back before anybody can ask."""
        for process in self._run.processes(*VICTIMS[role]):
            process.kill()

    def _victim(self, role: str) -> psutil.Process:
        if role == "areal run":
            assert self._run.process is not None
            return psutil.Process(self._run.process.pid)
        return self._run.processes(*VICTIMS[role])[-1]

    def _inject(self, cell: Cell, victim: psutil.Process) -> Callable[[], object]:
        match cell.fault:
            case "SIGSTOP":
                victim.suspend()
                return victim.resume
            case "SIGKILL":
                victim.kill()
                return lambda: None
            case "blackholed edge":
                return self._drop_packets(cell.role)
            case "deadlock in user code":
                return self._flagged(_USER_CODE[cell.role])
            case "no engine at the version":
                return self._flagged("weights")
            case _:
                self._flag.touch()
                victim.send_signal(signal.SIGUSR2)
                return self._flag.unlink

    def _flagged(self, name: str) -> Callable[[], object]:
        flag = self._flag.with_name(f"{self._flag.name}.{name}")
        flag.touch()
        return flag.unlink

    def _drop_packets(self, role: str) -> Callable[[], object]:
        """Everything that is sent to the role's ports, also on connections that are open."""
        told = json.loads(self._layout.resolved.read_text())["ports"]
        name = ROLES[role]
        ports = told.get(name) or told[name.rpartition("-")[0]]
        listed = ",".join(str(port) for purpose, port in ports.items() if (purpose == "engine") == (role == "engine"))
        rule = ["INPUT", "-i", "lo", "-p", "tcp", "-m", "multiport", "--dports", listed, "-j", "DROP"]
        subprocess.run(["iptables", "-I", *rule], check=True)
        return lambda: subprocess.run(["iptables", "-D", *rule], check=True)

    def _works_again(self, cell: Cell) -> None:
        step = self._run.step()
        what = f"step after {cell.name}"
        self._run.wait_for(what, lambda: self._run.step() > step and self.said().cause == "none", 120)


def table(outcomes: Iterable[Outcome]) -> str:
    """One line a cell."""
    lines = []
    for one in outcomes:
        when = f"{one.after_s:.1f} s" if one.after_s is not None else "missed"
        lines.append(f"  {one.cell.name:<32} {when:>8}  {one.said}")
    return "\n".join(lines)
