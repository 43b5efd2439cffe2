"""`areal run`: a job file to a finished run on this machine, and the exit code.

Reads top to bottom: load, claim, stage, supervise and show, account; a failure is reported with the role, how it ended,
its last words, where the log is, and what to do. Owns the signals of the process.
"""

import asyncio
import contextlib
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psutil
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from areal.data import Snapshot
from areal.distribution import command
from areal.errors import ArealError, BugError, Cause, DataError, ExitCode, InfraError, as_bug, by_kind, of_machine
from areal.errors import Kind as ErrorKind
from areal.ledger.audit import AuditReport, audit
from areal.local import finish, view
from areal.local.archive import copy_rest
from areal.local.display import Display
from areal.local.kept import claimed
from areal.local.staging import StagingRequest, load, stage
from areal.local.status import RunFacts, RunView, StatusSource
from areal.local.supervisor import Member, RunOutcome, RunResult, Supervisor
from areal.local.view import duration, rate
from areal.observe.causes import DISK_FULL
from areal.observe.live import Diagnosis, Live, LiveRole, LiveWait, free_bytes, read_live, write_live
from areal.plan import ResolvedJob, RoleRow, RunLayout, role_table
from areal.plan.access import token_of
from areal.plan.callers import Outsider
from areal.processes.core import ChildPhase
from areal.processes.exits import exit_code_of
from areal.processes.logfile import last_words
from areal.processes.supervise import child_of
from areal.record import summary
from areal.record.episode_ends import read_counts, wasted_text
from areal.record.run_rows import Records
from areal.tls import web_address

_SHOWN_STEPS = 100  # of the newest ones all figures are kept while the run goes on; one takes 1.1 kB


class Fleet(Protocol):
    """Other machines for a run's roles: decides who is where, runs each program there, keeps `addresses` true."""

    def settle(self, resolved: ResolvedJob) -> ResolvedJob: ...
    def rows(self, resolved: ResolvedJob) -> list[RoleRow]: ...
    async def watch(self, resolved: ResolvedJob, supervisor: Supervisor, addresses: dict[str, str]) -> None: ...


def run_job(request: StagingRequest, console: Console, fleet: Fleet | None = None) -> int:
    """Run the job, here or on a fleet; returns the exit code. Raises ArealError for what a person must correct."""
    say: Callable[[str], None] = partial(console.print, highlight=False, markup=False)
    job = load(request, say)
    run_dir = request.directory(job)
    with claimed(run_dir) as claim, _recorded(run_dir):
        resolved = stage(request, job, say, claim.take)
        resolved = resolved if fleet is None else fleet.settle(resolved)
        earlier = _earlier(resolved.layout.summary, say) if request.resume else None
        console.print(f"run directory {_shown(run_dir)}", highlight=False, markup=False, soft_wrap=True)
        resume = _resume_command(request)
        with contextlib.suppress(OSError), _reserve(resolved.layout).open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)
        born, steps = psutil.Process().create_time(), _length(resolved)[0]
        write_live(
            resolved.layout.live, Live(time.time(), os.getpid(), born, 0, steps, name=resolved.name, resume=resume)
        )
        began = time.monotonic()
        outcome, restarts, generation_tps, shown = asyncio.run(_supervise(resolved, resume, console, fleet))
        ending = summary.RunEnd(outcome.ended.value, time.monotonic() - began, restarts, generation_tps)
        return _account(resolved, outcome, ending, earlier, shown, console)


def _earlier(path: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The account of the run that is resumed. A damaged one costs its wall time and restarts, never the run."""
    try:
        return summary.read(path)
    except DataError as error:
        say(f"wall time and restarts are counted from now on: {error.message}")
        return None


@contextlib.contextmanager
def _recorded(run_dir: Path) -> Iterator[None]:
    """Errors of this process, typed; one that ends a run is written into the run's files."""
    layout = RunLayout(run_dir)
    try:
        yield
    except Exception as error:
        told = _typed(error)
        live = read_live(layout.live)
        if live is None or live.pid != os.getpid() or live.ended:
            raise told from (error if told is not error else error.__cause__)
        end = ended_by(RunOutcome(RunResult.FAILED), told, live)
        with contextlib.suppress(OSError, ArealError):
            _reserve(layout).unlink(missing_ok=True)
            write_live(layout.live, replace(live, at=time.time(), ended=True, cause=end))
            finish.report(run_dir, end)
        raise by_kind(told.kind, end.sentence, fix=end.fix, cause=told.cause) from error


def _typed(error: BaseException) -> ArealError:
    if isinstance(error, ArealError):
        return error
    if (failed := of_machine(error)) is not None:
        return failed
    return InfraError(str(error)) if isinstance(error, OSError) else as_bug(error)


_RESERVE_BYTES = 2 << 20  # of the run's own disk: its end must be written where a role filled it


def _reserve(layout: RunLayout) -> Path:
    return layout.root / ".reserve"


async def _watched(fleet: Fleet, resolved: ResolvedJob, supervisor: Supervisor, addresses: dict[str, str]) -> None:
    """Watch the fleet; what ends that ends the run, which would notice no lost machine any more."""
    try:
        await fleet.watch(resolved, supervisor, addresses)
    except (ArealError, OSError) as error:
        supervisor.fail(f"the run's other machines can't be watched: {error}", ErrorKind.INFRA)


async def _supervise(
    resolved: ResolvedJob, resume: str, console: Console, fleet: Fleet | None
) -> tuple[RunOutcome, dict[str, int], float, RunView]:
    """The run itself: the outcome, restarts by role, tokens generated per second, the last picture."""
    rows = role_table(resolved) if fleet is None else fleet.rows(resolved)
    supervisor = Supervisor(
        [Member(child_of(row, resolved.layout.logs, Path.cwd()), row.role, row.depends_on) for row in rows]
    )
    max_steps, max_staleness = _length(resolved)
    addresses = {row.name: f"{row.probe_host}:{row.ports['grpc']}" for row in rows if "grpc" in row.ports}
    facts = RunFacts(
        name=resolved.name,
        token=token_of(resolved, Outsider.OPERATOR),
        addresses=addresses,
        controller=resolved.endpoints.controller,
        records=Records(resolved.layout.metrics, resolved.layout.evaluations, _SHOWN_STEPS),
        max_steps=max_steps,
        max_staleness=max_staleness,
        base_urls=[f"{web_address(url)}/v1" for url in resolved.endpoints.gateway_urls],
        resume=resume,
    )
    source = StatusSource(
        facts, lambda: [_role(supervisor, name) for name in supervisor.children], resolved.layout.live
    )
    display = Display(source, console, supervisor.fail)
    _handle_signals(supervisor, display, console)
    beside = [asyncio.create_task(display.run())]
    if fleet is not None:
        beside.append(asyncio.create_task(_watched(fleet, resolved, supervisor, addresses)))
    try:
        outcome = await supervisor.run()
    finally:
        for task in beside:
            task.cancel()
        for task in beside:
            with contextlib.suppress(asyncio.CancelledError):
                await task
    seen, last = display.newest, await source.view()
    if seen is not None:  # the controller is gone: what it said last stays
        said = seen.live
        kept = replace(last.live, policy=said.policy, flow=said.flow, generation_tps=said.generation_tps)
        last = replace(last, live=kept)
    await source.close()
    restarts = {name: child.status.restarts for name, child in supervisor.children.items()}
    return outcome, restarts, source.generation_tps, last


def _length(resolved: ResolvedJob) -> tuple[int, int]:
    """The run's steps and its η; a training on fixed rows has no η."""
    spec = resolved.spec
    if spec.supervised is None:
        return spec.algorithm.max_steps, spec.algorithm.max_staleness
    rows = len(Snapshot(resolved.layout.dataset / "train"))
    return spec.supervised.steps(rows), 0


_NOT_BACK = (ChildPhase.STARTING, ChildPhase.BACKING_OFF, ChildPhase.FAILED)


def _role(supervisor: Supervisor, name: str) -> LiveRole:
    """A role as the supervisor sees it; one that isn't started yet waits for what it depends on."""
    status = supervisor.children[name].status
    age = max(0.0, time.monotonic() - status.since) if status.since else 0.0
    missing = supervisor.waits_for(name)
    waits = [LiveWait("start", f"{', '.join(missing)} to be ready", age)] if missing else []
    last = status.last_exit if status.phase in _NOT_BACK else None
    reason, cause, fix = (status.reason or last.reason, last.cause, last.fix) if last else (status.reason, "", "")
    return LiveRole(
        name, status.phase, status.pid, status.restarts, reason, cause, fix, waits=waits, warning=status.warning
    )


_SIGNALS = {
    signal.SIGINT: "you stopped it (Ctrl-C)",
    signal.SIGTERM: "it was asked to stop (SIGTERM)",
    signal.SIGHUP: "its terminal was closed (SIGHUP)",
}


def _handle_signals(supervisor: Supervisor, display: Display, console: Console) -> None:
    """The first Ctrl-C (or SIGTERM, or a closed terminal) stops cleanly, the second kills."""
    asked = 0

    def on_signal(by: str) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            display.note = "stopping: the trainer writes a checkpoint; Ctrl-C again kills everything at once"
            supervisor.stop(by)
            if not console.is_terminal:
                console.print(display.note, highlight=False)
        else:
            supervisor.kill()

    loop = asyncio.get_running_loop()
    for number, by in _SIGNALS.items():
        loop.add_signal_handler(number, on_signal, by)


def _account(
    resolved: ResolvedJob,
    outcome: RunOutcome,
    ending: summary.RunEnd,
    earlier: dict[str, object] | None,
    last: RunView,
    console: Console,
) -> int:
    """Write what the run came to and what ended it, print it, and choose the exit code."""
    layout = resolved.layout
    records = Records(layout.metrics, layout.evaluations).refresh()
    audited = audit(resolved.run_dir, finished=True if outcome.ended is RunResult.COMPLETE else None)
    error = failure(outcome, layout)
    if outcome.ended is RunResult.COMPLETE:
        error = _shortfall(resolved, records, audited)
    end = ended_by(outcome, error, last.live)
    unwritten: OSError | None = None
    _reserve(layout).unlink(missing_ok=True)
    result = summary.make(replace(ending, cause=end), records, audited, earlier, read_counts(layout.episode_ends))
    over = replace(last.live, at=time.time(), ended=True, cause=end)
    try:
        write_live(layout.live, over)
        finish.write(layout, result)
    except OSError as refused:  # a full disk: what failed matters more than its account
        unwritten = refused
        console.print(f"no account was written: {escape(str(refused))}", style="bold yellow")
    if not console.is_terminal:
        console.print(view.line(replace(last, live=over)), highlight=False, markup=False, soft_wrap=True)
    console.print(summary_table(result, _shown(resolved.run_dir)))
    copy_rest(resolved, partial(console.print, highlight=False, markup=False, soft_wrap=True))
    if outcome.ended is RunResult.STOPPED:
        console.print(f"\ngo on with: {over.resume}", highlight=False, markup=False, soft_wrap=True)
        return int(ExitCode.INFRA if outcome.killed else ExitCode.DRAINED)
    if error is not None:
        raise with_log(end, error, layout.logs)
    if unwritten is not None:
        raise unwritten
    return int(ExitCode.DONE)


def _shortfall(resolved: ResolvedJob, records: Records, audited: AuditReport) -> ArealError | None:
    """What a run lacks that came to its end."""
    if not audited.ok:
        return BugError(
            "the run completed, but its audit found: " + "; ".join(audited.problems[:5]),
            fix=f"see `areal audit {_shown(resolved.run_dir)}`, and report it with the run directory",
            cause=Cause.AUDIT_FAILED,
        )
    if summary.learned(records):
        return None
    why, fix = view.no_gradient(records.steps)
    text = f"the run took {records.trained} steps and none of them changed the model: {why}"
    return DataError(text, fix=fix, cause=Cause.NOTHING_LEARNED)


def _resume_command(request: StagingRequest) -> str:
    parts = ["areal", "run", str(request.job_file), *request.overrides]
    parts += ["--run-dir", str(request.run_dir)] if request.run_dir else []
    return shlex.join([*parts, *request.hosts, "--resume"])


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
    if (cause := summary.cause_of(result)) is not None:
        grid.add_row("ended by", Text(cause.named))
    grid.add_row("wall time", duration(result["wallSeconds"]))
    grid.add_row("held-out", accuracy)
    if (loss := result.get("loss")) is not None:
        uses = result.get("rowUses", {"fewest": 0, "most": 0})
        times = f"{uses['fewest']}" if uses["fewest"] == uses["most"] else f"{uses['fewest']} to {uses['most']}"
        grid.add_row("loss", f"{loss['first']:.4f} → {loss['last']:.4f}")
        grid.add_row("rows", f"{groups['trained']} trained, each of the dataset's {times} times")
        grid.add_row("tokens", f"training {rate(speed['training'])}")
    else:
        grid.add_row("groups", f"{groups['trained']} trained, {groups['lost']} lost, {groups['duplicated']} duplicated")
        grid.add_row("tombstones", tombstones)
        if (episodes := result.get("episodes")) is not None:
            said = f"{episodes['infraShare']:.2%} of {sum(episodes['ends'].values()):,} episodes"
            grid.add_row("infrastructure", f"{said} failed and were tried again")
        if (tokens := result.get("tokens")) is not None:
            grid.add_row("wasted tokens", wasted_text(tokens["fates"]))
        if (share := result.get("sameRewardShare")) is not None:
            grid.add_row("signal", f"{share:.0%} of groups earned the same, {result['updates']} updates")
        grid.add_row("staleness", f"{age['mean']:.2f} mean, {age['max']} max")
        grid.add_row("tokens", f"generation {rate(speed['generation'])}, training {rate(speed['training'])}")
    grid.add_row("restarts", died)
    grid.add_row("files", Text(str(run_dir)))
    grid.add_row("next", Text(f"{command()} view {run_dir}"))  # a command that works in this very shell
    return Group(Text(), grid)


_LINES = 12  # of the log; the path of all of it is told, too
_ADVICE = {
    ErrorKind.CONFIG: "correct the job file and start again",
    ErrorKind.DATA: "correct the dataset, model or recipe and start again",
    ErrorKind.INFRA: "see to what the log names",
    ErrorKind.BUG: "please report it with the log",
}


def failure(outcome: RunOutcome, layout: RunLayout) -> ArealError | None:
    """The error of a failed run, with the exit code that its failed role earned; None of a run that did not fail.

    A disk that is full now is behind whatever a role said of itself.
    """
    if outcome.ended is not RunResult.FAILED:
        return None
    if outcome.error is not None:
        return _typed(outcome.error)
    died = outcome.failed.last_exit if outcome.failed is not None else None
    kind = ErrorKind[exit_code_of(died.code).name] if died else outcome.kind
    cause, fix = (died.cause, died.fix) if died else (Cause.STALLED, "")
    free = free_bytes(layout.live)
    if kind in (ErrorKind.INFRA, ErrorKind.BUG) and free is not None and free < DISK_FULL:
        kind, cause, fix = ErrorKind.INFRA, Cause.DISK_FULL, f"make room at {layout.root} ({free:,} bytes are free)"
    return by_kind(kind, outcome.reason, fix=fix or _ADVICE[kind], cause=cause)


def ended_by(outcome: RunOutcome, error: ArealError | None, live: Live) -> Diagnosis:
    """What ended the run, and what to do: the record that every place shows."""
    at = f"step {live.step} of {live.max_steps}"
    role = outcome.failed.name if outcome.failed is not None else ""
    if error is not None:
        go_on = f"; then go on with `{live.resume}`" if error.kind in (ErrorKind.INFRA, ErrorKind.BUG) else ""
        return Diagnosis(error.cause, f"{error.message}, at {at}", error.fix + go_on, role)
    if outcome.ended is RunResult.COMPLETE:
        return Diagnosis(Cause.COMPLETE, f"the run is complete, at {at}")
    how = ", and killed it" if outcome.killed else ""
    return Diagnosis(Cause.STOPPED, f"{outcome.reason}{how}, at {at}", f"go on with `{live.resume}`")


def with_log(end: Diagnosis, error: ArealError, logs: Path) -> ArealError:
    """`error` in the words of the run's end, with the last lines of the role that failed."""
    path = logs / f"{end.role}.log"
    excerpt = last_words(path, _LINES)
    shown = "\n".join(f"    {line}" for line in excerpt.lines) or "    (nothing was logged)"
    which = f" (the newest start logged nothing; these are of {excerpt.start})" if excerpt.start else ""
    text = f"{end.sentence}\n  last lines of {path}{which}:\n{shown}" if end.role else end.sentence
    return by_kind(error.kind, text, fix=end.fix, cause=error.cause)
