"""`areal run`: a job file to a finished run on this machine, and the exit code.

Reads top to bottom: load, claim, stage, supervise and show, account; a failure is reported with the role, how it ended,
its last words, where the log is, and what to do. Owns the signals of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from areal.data import Snapshot
from areal.distribution import command
from areal.errors import ArealError, BugError, DataError, ExitCode, InfraError, by_kind
from areal.errors import Kind as ErrorKind
from areal.ledger.audit import audit
from areal.local import finish, view
from areal.local.claim import claimed
from areal.local.display import Display
from areal.local.staging import StagingRequest, load, stage
from areal.local.status import RunFacts, StatusSource
from areal.local.supervisor import Member, RunOutcome, RunResult, Supervisor
from areal.local.view import duration, rate
from areal.observe.live import LiveRole, LiveWait
from areal.plan import ResolvedJob, RoleRow, role_table
from areal.processes.exits import exit_code_of
from areal.processes.logfile import last_words
from areal.processes.supervise import child_of
from areal.record import summary
from areal.record.episode_ends import read_ends
from areal.record.run_rows import Records

_SHOWN_STEPS = 100  # of the newest ones all figures are kept while the run goes on; one takes 1.1 kB


def run_job(request: StagingRequest, console: Console) -> int:
    """Run the job to its end; returns the exit code. Raises ArealError for what a person must correct."""
    say: Callable[[str], None] = partial(console.print, highlight=False, markup=False)
    job = load(request, say)
    run_dir = request.directory(job)
    with claimed(run_dir) as claim, _disk_faults(run_dir):
        resolved = stage(request, job, say, claim.take)
        earlier = _earlier(resolved.layout.summary, say) if request.resume else None
        console.print(f"run directory {_shown(run_dir)}", highlight=False, markup=False, soft_wrap=True)
        began = time.monotonic()
        outcome, restarts, generation_tps = asyncio.run(_supervise(resolved, console))
        ending = summary.RunEnd(
            outcome.ended.value,
            time.monotonic() - began,
            restarts,
            generation_tps,
            sentence(outcome, resolved.layout.logs),
        )
        return _account(request, resolved, outcome, ending, earlier, console)


def _earlier(path: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The account of the run that is resumed. A damaged one costs its wall time and restarts, never the run."""
    try:
        return summary.read(path)
    except DataError as error:
        say(f"wall time and restarts are counted from now on: {error.message}")
        return None


@contextlib.contextmanager
def _disk_faults(run_dir: Path) -> Iterator[None]:
    """A disk that can't be written is the machine's fault, and nobody's bug."""
    try:
        yield
    except OSError as error:
        named = f" ({error.filename})" if error.filename else ""
        raise InfraError(
            f"the run directory {run_dir} can't be written: {error.strerror or error}{named}",
            fix="free space there, then go on with --resume, or choose another disk with --run-dir",
        ) from error


async def _supervise(resolved: ResolvedJob, console: Console) -> tuple[RunOutcome, dict[str, int], float]:
    """The run itself: the outcome, restarts by role, tokens generated per second."""
    rows = role_table(resolved)
    supervisor = Supervisor(_members(rows, resolved))
    max_steps, max_staleness = _length(resolved)
    facts = RunFacts(
        name=resolved.name,
        token=resolved.token_path.read_text().strip(),
        addresses={row.name: f"127.0.0.1:{row.ports['grpc']}" for row in rows if "grpc" in row.ports},
        controller=resolved.endpoints.controller,
        records=Records(resolved.layout.metrics, resolved.layout.evaluations, _SHOWN_STEPS),
        max_steps=max_steps,
        max_staleness=max_staleness,
        base_urls=[f"{url}/v1" for url in resolved.endpoints.gateway_urls],
    )
    source = StatusSource(
        facts, lambda: [_role(supervisor, name) for name in supervisor.children], resolved.layout.live
    )
    display = Display(source, console, supervisor.fail)
    _handle_signals(supervisor, display, console)
    shown = asyncio.create_task(display.run())
    try:
        outcome = await supervisor.run()
    finally:
        shown.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await shown
        await source.close()
    restarts = {name: child.status.restarts for name, child in supervisor.children.items()}
    return outcome, restarts, source.generation_tps


def _length(resolved: ResolvedJob) -> tuple[int, int]:
    """The run's steps and its η; a training on fixed rows has no η."""
    spec = resolved.spec
    if spec.supervised is None:
        return spec.algorithm.max_steps, spec.algorithm.max_staleness
    rows = len(Snapshot(resolved.layout.dataset / "train"))
    return spec.supervised.steps(rows), 0


def _members(rows: Sequence[RoleRow], resolved: ResolvedJob) -> list[Member]:
    return [Member(child_of(row, resolved.layout.logs, Path.cwd()), row.role, row.depends_on) for row in rows]


def _role(supervisor: Supervisor, name: str) -> LiveRole:
    """A role as the supervisor sees it; one that isn't started yet waits for what it depends on."""
    status = supervisor.children[name].status
    age = max(0.0, time.monotonic() - status.since) if status.since else 0.0
    missing = supervisor.waits_for(name)
    waits = [LiveWait("start", f"{', '.join(missing)} to be ready", age)] if missing else []
    return LiveRole(name, status.phase, status.pid, status.restarts, status.reason, waits=waits, warning=status.warning)


def _handle_signals(supervisor: Supervisor, display: Display, console: Console) -> None:
    """The first Ctrl-C (or SIGTERM, or a closed terminal) stops cleanly, the second kills."""
    asked = 0

    def on_signal() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            display.note = "stopping: the trainer writes a checkpoint; Ctrl-C again kills everything at once"
            supervisor.stop()
            if not console.is_terminal:
                console.print(display.note, highlight=False)
        else:
            supervisor.kill()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)


def _account(
    request: StagingRequest,
    resolved: ResolvedJob,
    outcome: RunOutcome,
    ending: summary.RunEnd,
    earlier: dict[str, object] | None,
    console: Console,
) -> int:
    """Write what the run came to, print it, and choose the exit code."""
    layout = resolved.layout
    records = Records(layout.metrics, layout.evaluations).refresh()
    audited = audit(resolved.run_dir, finished=True if outcome.ended is RunResult.COMPLETE else None)
    result = summary.make(ending, records, audited, earlier, read_ends(layout.episode_ends))
    unwritten: OSError | None = None
    try:
        finish.write(layout, result)
    except OSError as error:  # a full disk: what failed matters more than its account
        unwritten = error
        console.print(f"no account was written: {escape(str(error))}", style="bold yellow")
    console.print(summary_table(result, _shown(resolved.run_dir)))
    if outcome.ended is RunResult.STOPPED:
        console.print(f"\ngo on with: {_resume_command(request)}", highlight=False, markup=False, soft_wrap=True)
        return int(ExitCode.INFRA if outcome.killed else ExitCode.DRAINED)
    if outcome.ended is RunResult.FAILED:
        raise explain(outcome, layout.logs)
    if not audited.ok:
        raise BugError(
            "the run completed, but its audit found: " + "; ".join(audited.problems[:5]),
            fix=f"see `areal audit {_shown(resolved.run_dir)}`, and report it with the run directory",
        )
    if unwritten is not None:
        raise unwritten
    if result.get("updates") == 0 and not resolved.spec.is_rl:
        raise DataError(
            f"the run took {result['steps']} steps and none of them changed the model: every gradient was not finite",
            fix="lower the learning rate, or look for rows without an answer",
        )
    if result.get("updates") == 0:
        raise DataError(
            f"the run took {result['steps']} steps and none of them changed the model: {view.NO_GRADIENT}",
            fix=view.NO_GRADIENT_FIX,
        )
    return int(ExitCode.DONE)


def _resume_command(request: StagingRequest) -> str:
    parts = ["areal", "run", str(request.job_file), *request.overrides]
    parts += ["--run-dir", str(request.run_dir)] if request.run_dir else []
    return shlex.join([*parts, "--resume"])


def _shown(path: Path) -> Path:
    """Relative to the current directory where that is shorter."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def summary_table(result: Mapping[str, Any], run_dir: Path) -> RenderableType:
    """The summary for people."""
    groups, out, speed, age = (result[key] for key in ("groups", "heldOut", "tokensPerSecond", "staleness"))
    tombstones = ", ".join(f"{count} {reason}" for reason, count in groups["tombstoned"].items()) or "none"
    died = ", ".join(f"{name} {count}" for name, count in result["restarts"].items() if count) or "none"
    accuracy = "—"
    if out["first"] is not None:
        accuracy = f"{out['first']:.3f} → {out['last']:.3f}, best {out['best']:.3f}"
    colour = {"Complete": "green", "Failed": "red"}.get(result["status"], "yellow")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("status", Text(f"{result['status']} after {result['steps']} steps", style=f"bold {colour}"))
    grid.add_row("wall time", duration(result["wallSeconds"]))
    grid.add_row("held-out", accuracy)
    if (loss := result.get("loss")) is not None:
        return _supervised_table(grid, result, loss, died, run_dir)
    grid.add_row("groups", f"{groups['trained']} trained, {groups['lost']} lost, {groups['duplicated']} duplicated")
    grid.add_row("tombstones", tombstones)
    if (episodes := result.get("episodes")) is not None:
        ended = sum(episodes["ends"].values())
        grid.add_row(
            "infrastructure", f"{episodes['infraShare']:.2%} of {ended:,} episodes failed and were tried again"
        )
    if (share := result.get("sameRewardShare")) is not None:
        grid.add_row("signal", f"{share:.0%} of groups earned the same, {result['updates']} updates")
    grid.add_row("staleness", f"{age['mean']:.2f} mean, {age['max']} max")
    grid.add_row("tokens", f"generation {rate(speed['generation'])}, training {rate(speed['training'])}")
    grid.add_row("restarts", died)
    return _with_files(grid, run_dir)


def _supervised_table(
    grid: Table, result: Mapping[str, Any], loss: Mapping[str, float], died: str, run_dir: Path
) -> RenderableType:
    uses = result.get("rowUses", {"fewest": 0, "most": 0})
    times = f"{uses['fewest']}" if uses["fewest"] == uses["most"] else f"{uses['fewest']} to {uses['most']}"
    grid.add_row("loss", f"{loss['first']:.4f} → {loss['last']:.4f}")
    grid.add_row("rows", f"{result['groups']['trained']} trained, each of the dataset's {times} times")
    grid.add_row("tokens", f"training {rate(result['tokensPerSecond']['training'])}")
    grid.add_row("restarts", died)
    return _with_files(grid, run_dir)


def _with_files(grid: Table, run_dir: Path) -> RenderableType:
    """The last rows of an end: where the files are, and a command that works in this very shell."""
    grid.add_row("files", Text(str(run_dir)))
    grid.add_row("next", Text(f"{command()} view {run_dir}"))
    return Group(Text(), grid)


_LINES = 12  # of the log; the path of all of it is told, too
_FIX = re.compile(r"^\s*fix: (.+)$")

_OWN = re.compile(r"\b(?:config|data|infra|bug) error: (.+)$")

_ADVICE = {
    ExitCode.CONFIG: "correct the job file and start again",
    ExitCode.DATA: "correct the dataset, model or recipe and start again",
    ExitCode.INFRA: "see to what the log names, then go on with --resume",
    ExitCode.BUG: "report this with the log; --resume goes on from the last checkpoint",
}
_KINDS = {
    ExitCode.CONFIG: ErrorKind.CONFIG,
    ExitCode.DATA: ErrorKind.DATA,
    ExitCode.INFRA: ErrorKind.INFRA,
    ExitCode.BUG: ErrorKind.BUG,
}


def explain(outcome: RunOutcome, logs: Path) -> ArealError:
    """The error of a failed run, with the exit code that its failed role earned."""
    failed = outcome.failed
    if failed is None:
        error = by_kind(outcome.kind, outcome.reason)
        error.fix = _ADVICE[error.exit_code]
        return error
    path = logs / f"{failed.name}.log"
    excerpt = last_words(path, 200)
    last = excerpt.lines
    code = failed.last_exit.code if failed.last_exit else int(ExitCode.BUG)
    own = exit_code_of(code)
    shown = "\n".join(f"    {line}" for line in last[-_LINES:]) or "    (nothing was logged)"
    which = f" (the newest start logged nothing; these are of {excerpt.start})" if excerpt.start else ""
    message = f"{failed.name} failed: {outcome.reason}\n  last lines of {path}{which}:\n{shown}"
    return by_kind(_KINDS[own], message, fix=_own_fix(last) or _ADVICE[own])


def sentence(outcome: RunOutcome, logs: Path) -> str:
    """Why a run failed, in one line: what its failed role said itself, else how it ended; nothing for others."""
    if outcome.ended is not RunResult.FAILED:
        return ""
    if outcome.failed is None:
        return outcome.reason
    name, how = outcome.failed.name, outcome.reason
    said = [match[1] for line in last_words(logs / f"{name}.log", 200).lines if (match := _OWN.search(line))]
    return f"{name}: {said[-1]} ({how})" if said else f"{name}: {how}"


def _own_fix(lines: Sequence[str]) -> str:
    """The fix that the role itself printed last."""
    fixes = [match[1] for line in lines if (match := _FIX.match(line))]
    return fixes[-1] if fixes else ""
