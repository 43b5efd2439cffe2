"""Deaths and stalls of a run with dummies for roles, each with the cause that every place must name, and the exit code.

The places are what people look at: the lines that the run prints, the text and the code of its end, `summary.json`,
`areal why`, `areal status`, the page, and the report.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from areal.local import inspect
from areal.observe.causes import why
from areal.observe.live import read_live
from areal_view.pages.overview import page_of
from areal_view.pages.runs import ShownRun
from support import dummy_run
from support.small_disk import small_disk

PATIENCE_S = 300.0  # machines of tests are loaded
FEW = (  # of every test run; `make stalls`: all
    "trainer raises", "trainer is killed", "disk is full", "Ctrl-C", "areal run is killed", "worker is stopped",
)  # fmt: skip
_NAME = re.compile(r"\[([a-z-]+)\]")
_END = re.compile(r"^(config|data|infra|bug) error(?: \[([a-z-]+)\])?: ", re.MULTILINE)
_OTHERS = ("controller", "redis", "generation-0", "reward-custom", "gateway-0")
_SLOW = "slow"  # of a trainer: it makes a step and waits
_EARLY = "early: import os, sys, time\n"


@dataclass(frozen=True)
class Cell:
    """What happens to which part of a run. `attack` is done to a run that makes steps; `code` None: it goes on."""

    name: str
    cause: str
    code: int | None
    trainer: str = _SLOW
    other: tuple[str, str] = ("", "")  # one more role, and what it does
    attack: Callable[[psutil.Process, Path], object] | None = None
    disk_mb: int = 0
    words: str = ""  # that the end has, too


@dataclass(frozen=True)
class Outcome:
    """The identifier that each place named."""

    cell: Cell
    said: Mapping[str, str] = field(default_factory=dict)
    code: int | None = None
    output: str = ""

    @property
    def right(self) -> int:
        return sum(said == self.cell.cause for said in self.said.values())

    @property
    def wrong_end(self) -> bool:
        """Whether the exit code is another, or the machine's fault is called ours, or words are missing."""
        blamed = self.cell.code == 75 and "report it" in self.output
        return self.code != self.cell.code or blamed or self.cell.words not in self.output


def raising(error: str) -> str:
    return f"code: steps(0, 1)\nraise {error}"


def role(process: psutil.Process, word: str) -> psutil.Process:
    """The newest process of a dummy."""
    found = [one for one in process.children(recursive=True) if word in one.cmdline()]
    return max(found, key=lambda one: one.create_time())


def _signalled(number: int, *, twice: bool = False) -> Callable[[psutil.Process, Path], object]:
    def attack(process: psutil.Process, run_dir: Path) -> None:
        process.send_signal(number)
        if twice:
            time.sleep(1.0)
            process.send_signal(number)

    return attack


def _time_limit(process: psutil.Process, run_dir: Path) -> None:
    """As schedulers end what is over its time, and doesn't end within the grace that they give: `timeout -k 1`."""
    process.terminate()
    time.sleep(1.0)
    process.kill()


def _suspend(word: str) -> Callable[[psutil.Process, Path], object]:
    return lambda process, run_dir: role(process, word).suspend()


def _errors() -> list[Cell]:
    """Errors that a role raises: its own fault, the user's, and the machine's."""
    told = {
        "raises": ("ValueError('odd')", "bug", 70, "ValueError: odd (<string>:2 in <module>)"),
        "finds bad rows": ("DataError('row 7 has no prompt', fix='add it')", "data", 65, "row 7 has no prompt"),
        "finds a bad job": ("ConfigError('no such model')", "config", 64, "no such model"),
        "has no memory": ("MemoryError()", "no-memory", 75, "no memory is left"),
        "has no descriptor": ("OSError(errno.EMFILE, 'Too many open files')", "no-descriptors", 75, "ulimit -n"),
        "has no network": ("OSError(errno.ENETUNREACH, 'unreachable')", "no-network", 75, "connect this machine"),
        "finds no name": ("socket.gaierror(socket.EAI_AGAIN, 'again')", "no-network", 75, "no name server"),
        "has a dying disk": ("OSError(errno.EIO, 'I/O error', '/data')", "disk-fails", 75, "the disk fails"),
        "is out of GPU memory": (
            "InfraError('CUDA out of memory', cause=Cause.NO_MEMORY)", "no-memory", 75, "out of memory",
        ),
        "finds the store full": (
            "InfraError('the replay store is full', cause=Cause.STORE_FULL)", "store-full", 75, "is full",
        ),
        "loses its peer": ("InfraError('another rank was lost')", "infra", 75, "another rank was lost"),
    }  # fmt: skip
    return [
        Cell(f"trainer {how}", cause, code, raising(error), words=words)
        for how, (error, cause, code, words) in told.items()
    ]


def _deaths() -> list[Cell]:
    """Roles that are killed or end without a word, each by its name."""
    killed = _EARLY + "os.kill(os.getpid(), 9)"
    cells = [
        Cell("trainer is killed", "role-killed", 75, killed, words="dmesg"),
        Cell("trainer crashes", "role-killed", 75, _EARLY + "os.kill(os.getpid(), 11)", words="SIGSEGV"),
        Cell("trainer ends without a word", "role-ended", 70, _EARLY + "sys.exit(3)"),
        Cell("trainer can't be imported", "role-ended", 70, _EARLY + "import no_such_package", words="no_such_package"),
    ]
    cells += [Cell(f"{name} is killed", "role-killed", 75, other=(name, killed)) for name in _OTHERS]
    bad = "code: raise DataError('config.json of the model is damaged', fix='download it again')"
    models = ("generation-0", "reward-custom", "controller")
    return cells + [
        Cell(f"{name} has a bad model", "data", 65, other=(name, bad), words="download it again") for name in models
    ]


def cells() -> list[Cell]:
    """All of them."""
    hole = "code: steps(0, 1)\nfor s in range(1, 3): metric(s, updates=0)"
    nan = "code: for s in range(3): metric(s, updates=0, skipped_updates=1, loss=None)"
    port = (
        "code: from areal.net.listening import listen\nsteps(0, 1)\n"
        "with socket.create_server(('127.0.0.1', 0)) as held: listen('127.0.0.1', held.getsockname()[1])"
    )
    return [
        *_errors(), *_deaths(),
        Cell("run is complete", "complete", 0, "well"),
        Cell("no step learns", "nothing-learned", 65, hole, words="none of them changed the model"),
        Cell("loss is NaN", "nothing-learned", 65, nan, words="every gradient was not finite"),
        Cell("port is taken", "port-taken", 75, port, words="can't listen on"),
        Cell("disk is full", "disk-full", 75, "fills", disk_mb=64, words="bytes are free"),
        Cell("no descriptor is left", "no-descriptors", 75, attack=_no_descriptor),
        Cell("Ctrl-C", "stopped", 143, attack=_signalled(signal.SIGINT), words="you stopped it (Ctrl-C)"),
        Cell("Ctrl-C twice", "stopped", 75, "code: steps(0, 1)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
             "time.sleep(600)", attack=_signalled(signal.SIGINT, twice=True), words="and killed it"),
        Cell("SIGTERM", "stopped", 143, attack=_signalled(signal.SIGTERM), words="asked to stop (SIGTERM)"),
        Cell("time limit, killed after it", "run-gone", -9, "code: steps(0, 1)\nsignal.signal(signal.SIGTERM, "
             "signal.SIG_IGN)\ntime.sleep(600)", attack=_time_limit),
        Cell("SIGHUP", "stopped", 143, attack=_signalled(signal.SIGHUP), words="terminal was closed"),
        Cell("areal run is killed", "run-gone", -9, attack=_signalled(signal.SIGKILL)),
        Cell("areal run is stopped", "run-silent", None, attack=_signalled(signal.SIGSTOP)),
        Cell("worker is stopped", "role-stopped", None, attack=_suspend("worker")),
        Cell("trainer is stopped", "role-stopped", None, attack=_suspend(_SLOW)),
        Cell("worker is killed again and again", "role-killed", 75, attack=_kill_worker),
        Cell("worker's loop is blocked", "role-silent", None,
             attack=lambda process, run_dir: role(process, "worker").send_signal(signal.SIGUSR1)),
    ]  # fmt: skip


def _no_descriptor(process: psutil.Process, run_dir: Path) -> None:
    """`areal run` may open nothing more, when it must start the trainer again."""
    most = process.num_fds()
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most, most))
    role(process, _SLOW).kill()


def _kill_worker(process: psutil.Process, run_dir: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while process.is_running() and time.monotonic() < deadline:
        with suppress(ValueError, psutil.Error):
            role(process, "worker").kill()
        time.sleep(0.2)


def try_cell(runs: dummy_run.Runs, cell: Cell, folder: Path) -> Outcome:
    """Let it happen, and look at every place."""
    folder.mkdir()
    out = folder / "out"
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(folder / "disk", cell.disk_mb)) if cell.disk_mb else folder
        run_dir = disk / "run"
        process = runs.begin(run_dir, cell.trainer, out, cell.other, worker="worker" in cell.name)
        stack.callback(_end, process)
        if cell.attack is not None:
            _until(process, lambda: (live := read_live(run_dir / "live.json")) is not None and live.step >= 1)
            cell.attack(process, run_dir)
        if cell.code is None:
            return _standing(runs, cell, process, run_dir, out)
        code = runs.ended()
        output, said = out.read_text(), _files(run_dir)
        return Outcome(cell, {**said, **(_after(output, run_dir) if code >= 0 else {})}, code, output)


def _standing(runs: dummy_run.Runs, cell: Cell, process: psutil.Process, run_dir: Path, out: Path) -> Outcome:
    """What is said of a run that goes on."""
    _until(process, lambda: _why(run_dir) == cell.cause)
    if prints := cell.cause != "run-silent":  # a line is due after five seconds with news
        _until(process, lambda: f"[{cell.cause}]" in out.read_text(), 60.0)
    said = _files(run_dir) | ({"line": _named(out.read_text())} if prints else {})
    _end(process)
    runs.ended()
    return Outcome(cell, said, None, out.read_text())


def _after(output: str, run_dir: Path) -> dict[str, str]:
    """What those say that are written at the end."""
    found = _END.search(output)
    table, report = output.rpartition("ended by")[2].partition("wall time")[0], run_dir / "report.html"
    line = next((one for one in reversed(output.splitlines()) if re.match(r"\s*\S+  step ", one)), "")
    summary = json.loads((run_dir / "summary.json").read_text()) if (run_dir / "summary.json").exists() else {}
    return {
        "line": _named(line),
        "end": (found[2] or found[1]) if found else _named(table),
        "table": _named(table),
        "summary": summary.get("cause", {}).get("cause", ""),
        "report": _named(report.read_text().partition("</strong>")[0]) if report.exists() else "",
    }


def _files(run_dir: Path) -> dict[str, str]:
    """What those say that read the run's directory."""
    status = json.loads(inspect.as_json(inspect.look(run_dir)))
    shown = ShownRun("run", run_dir, run_dir.parent / "cache")
    try:
        page = page_of(shown).why
    finally:
        shown.close()
    return {"why": _why(run_dir), "status": status["cause"]["cause"], "page": page.cause if page else ""}


def _why(run_dir: Path) -> str:
    live = read_live(run_dir / "live.json")
    return why(live).cause if live is not None else ""


def _named(text: str) -> str:
    found = _NAME.findall(text)
    return found[-1] if found else ""


def _until(process: psutil.Process, ready: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not ready() and process.is_running() and time.monotonic() < deadline:
        time.sleep(0.05)


def _end(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        family = process.children(recursive=True)
        process.kill()
        for one in family:
            with suppress(psutil.Error):
                one.kill()


def table(outcomes: Iterable[Outcome]) -> str:
    """One line a cell: its cause, and the places that name another."""
    lines = []
    for one in outcomes:
        other = ", ".join(f"{place}: {said or 'nothing'}" for place, said in one.said.items() if said != one.cell.cause)
        end = f"{one.code}" if one.code == one.cell.code else f"{one.code}, not {one.cell.code}"
        words = " MISSING WORDS" if one.cell.words not in one.output else ""
        lines.append(
            f"  {one.cell.name:<34} {one.cell.cause:<16} {one.right}/{len(one.said)}  exit {end}{words}  {other}"
        )
    return "\n".join(lines)
