"""Commands on run directories: status, logs, list, clean, compare, audit, chaos, set.

Of a job on a cluster another package answers.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal.cli import arguments
from areal.cli.table import load
from areal.errors import ArealError, ConfigError, ExitCode, InfraError

if TYPE_CHECKING:
    from areal.local.kept import KeptRun

_LOOK_S = 0.3  # between looks of --follow
_STAMPS = {
    "detected": "detected", "replaced": "back", "new_step": "new step", "old_pace": "old pace",
    "pause": "longest pause",
}  # fmt: skip
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")

app = arguments.commands()


@app.command()
def status(
    run: arguments.RunOrJob,
    as_json: arguments.AsJson = False,
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Ask every role of a run what it does, what it waits for, since when; of a job on a cluster, show its status."""
    if (name := arguments.job_name(run)) is not None:
        load("areal_operator.job_commands:show_status")(name, namespace, kubeconfig, context, as_json=as_json)
        return
    from areal.local import inspect

    picture = inspect.look(arguments.existing(run))
    if as_json:
        sys.stdout.buffer.write(inspect.as_json(picture) + b"\n")
    else:
        Console().print(inspect.table(picture))


@app.command()
def logs(
    run: arguments.RunOrJob,
    role: Annotated[list[str] | None, typer.Option(help="Only this role's; may be given again.")] = None,
    since: Annotated[str | None, typer.Option(help="Only from so long ago on: 90s, 10m, 2h, 1d.")] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=0, help="At most so many, the newest.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is logged next.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts: an object a line.")] = False,
    namespace: Annotated[str | None, typer.Option(help="The job's; the context's unless given.")] = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Print the logs of all roles as one stream in the order of time, of a run that goes on or has ended."""
    from areal.local import log_stream
    from areal.plan.layout import RunLayout

    here = arguments.run_here(run, namespace, kubeconfig, context, "logs")
    files = log_stream.log_files(RunLayout(here).logs, role or ())
    follower = log_stream.Follower(files)
    read = {path.name: path.stat().st_size for path in RunLayout(here).logs.glob("*.log")}
    console = Console(highlight=False, soft_wrap=True)
    width = max(len(name) for name in files)
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(files)}

    def show(name: str, text: str) -> None:
        if as_json:
            print(json.dumps({"role": name, "text": text}), flush=follow)
            return
        console.print(Text(f"{name:<{width}} ", style=colours.get(name, "")) + Text(text))

    logged = log_stream.merged(files, log_stream.since(since, time.time()) if since is not None else 0.0)
    for line in deque(logged, lines) if lines is not None else logged:
        show(line.role, line.text)
    job = arguments.job_name(run)
    if follow and job is not None:  # without an end
        for name, text in load("areal_operator.commands:following")(job, namespace, kubeconfig, context, read):
            if not role or any(log_stream.fits(name, one) for one in role):
                show(name, text)
    while follow:
        for name, text in follower.new():
            show(name, text)
        time.sleep(_LOOK_S)


Places = Annotated[
    list[Path] | None, typer.Argument(metavar="[DIR]...", help="Where runs lie, or runs; runs/ unless given.")
]


@app.command("runs")
def list_runs(places: Places = None, as_json: arguments.AsJson = False) -> None:
    """List runs: what each came to, when, and how much of the disk it has."""
    from areal.local.kept import kept

    runs = kept(_some(places))
    if as_json:
        print(json.dumps(_for_scripts(runs), indent=2))
    elif runs:
        Console().print(_listed(runs))
    else:
        print(f"no run in {', '.join(map(str, _some(places)))}")


@app.command()
def clean(
    places: Places = None,
    whole: Annotated[bool, typer.Option("--whole", help="Remove whole directories, figures and models too.")] = False,
    stopped: Annotated[bool, typer.Option("--stopped", help="Also runs that could still be gone on with.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="For scripts: never asks, and removes with --yes only.")
    ] = False,
) -> None:
    """Free the disk: show what would go, ask, and remove it. Of a complete run that is what only going on with it
    needs: checkpoints, published versions, the ledger; its figures, samples, evidence and final model stay.
    """
    from areal.local.kept import kept, remove
    from areal.local.view import size

    runs = kept(_some(places))
    going = [run for run in runs if run.status != "Running" and (run.over or stopped) and (whole or run.spare)]
    left = sum(run.status == "Running" or not (run.over or stopped) for run in runs)
    freed = sum(run.size if whole else run.spare for run in going)
    if as_json:
        for run in going if yes else ():
            remove(run, whole=whole)
        told = {"removed": yes, "bytes": freed, "leftAlone": left, "runs": _for_scripts(going)}
        print(json.dumps(told, indent=2))
        return
    if going:
        Console().print(_listed(going, whole=whole))
    if left:
        print(f"{left} left alone: running, or to be gone on with (--stopped takes those that don't run)")
    if not going:
        print("nothing to remove")
        return
    if not yes:
        if not sys.stdin.isatty():
            print(f"{size(freed)} would go; say --yes to remove it")
            return
        typer.confirm(f"remove {size(freed)}?", abort=True)
    for run in going:
        remove(run, whole=whole)
    print(f"removed {size(freed)}")


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN RUN...", help="Two or more: run directories, or rljob/NAME on a cluster."),
    ],
    as_json: arguments.AsJson = False,
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Set runs beside each other: the fields in which their jobs differ, and what came of it."""
    from areal.local.comparison import read_run
    from areal.plan.resolved import ResolvedJob
    from areal.spec.locate import differing_fields, spec_fields

    if len(runs) < 2:
        raise ConfigError("one run has nothing to be compared with", fix="name two run directories or more")
    places = [arguments.run_here(run, namespace, kubeconfig, context) for run in runs]
    differences = differing_fields([spec_fields(ResolvedJob.load(place).job) for place in places])
    compared = [read_run(place) for place in places]
    figures = {name: [run.figures[name] for run in compared] for name in compared[0].figures}
    if as_json:
        print(json.dumps({"runs": [str(run) for run in runs], "fields": differences, "figures": figures}, indent=2))
    else:
        Console().print(_compared([run.name for run in compared], differences, figures))


@app.command("audit")
def audit_run(
    run: arguments.RunOrJob,
    as_json: arguments.AsJson = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Compare every trained token with what the servers sampled instead.")
    ] = False,
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Prove from a run's logs that every prompt group was used exactly once; with --tokens, that every trained token
    is the one that was sampled.
    """
    here = arguments.run_here(run, namespace, kubeconfig, context, "journal", *["tokens"] * tokens)
    if tokens:
        raise typer.Exit(load("areal_view.commands:audit_tokens")(here, as_json=as_json))
    from areal.ledger.audit import audit

    report = audit(here)
    told = report.to_json()
    if as_json:
        print(json.dumps(flat(told), indent=2))
    else:
        Console().print(_audit_table(flat(told)))
    raise typer.Exit(int(ExitCode.DONE if report.ok else ExitCode.BUG))


@app.command()
def chaos(
    run: arguments.RunOrJob,
    role: Annotated[list[str] | None, typer.Option(help="Only this one; may be given again. All unless given.")] = None,
    times: Annotated[int, typer.Option(min=1, help="Faults of each role, one after another.")] = 1,
    stop: Annotated[
        float | None, typer.Option(min=0.1, help="Stop it for so many seconds instead of killing it.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the order of roles, and the moments.")] = 0,
    as_json: arguments.AsJson = False,
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Kill or stop roles of a run while it trains, and measure what each fault costs; of a job, lose its pods.

    Nothing may be lost or trained twice: an audit is the last line, of a job the one at its end. A role that has used
    half of its restarts is not hurt again; pods are deleted without notice, as when a node is gone.
    """
    from areal.ledger.audit import audit
    from areal.local.chaos import inject
    from areal.record.fault_cost import FaultCost, summary

    console, costs, failed = Console(stderr=as_json), list[FaultCost](), None

    def tell(cost: FaultCost) -> None:
        costs.append(cost)
        new = "no new step" if cost.new_step is None else f"a new step after {cost.new_step:.1f} s"
        console.print(f"{cost.kind} {cost.role}: {new}", highlight=False)

    try:
        if (name := arguments.job_name(run)) is None:
            inject(arguments.existing(run), role or (), times=times, stop_s=stop, seed=seed, tell=tell)
        elif stop is not None:
            raise ConfigError("a job's pods are lost, never stopped", fix="leave out --stop")
        else:
            cluster, job = load("areal_operator.job_commands:find_job")(name, namespace, kubeconfig, context)
            hurt = load("areal_operator.submit.chaos:JobUnderLosses")(cluster, job["metadata"]["namespace"], name)
            hurt.lose(role or (), times=times, seed=seed, tell=tell)
    except ArealError as error:
        if not costs:
            raise
        failed = error  # what was measured until then is shown first
    rows, proof = summary(costs), audit(run) if name is None else None
    if as_json:
        told = {"faults": [asdict(cost) for cost in costs], "roles": rows}
        print(json.dumps(told if proof is None else told | {"audit": flat(proof.to_json())}, indent=2))
    else:
        console.print(_costs(rows))
        audited = f"`areal audit {run}` proves it once the job has ended"
        if proof is not None:
            audited = f"lost={len(proof.lost)} duplicated={len(proof.duplicated)} other={len(proof.problems)}"
        console.print(f"audit: {audited}")
    if failed is not None:
        raise failed
    if not all(cost.recovered for cost in costs):
        raise InfraError(f"the run trained nothing new after {costs[-1].role}'s fault", fix=f"see `areal why {run}`")
    raise typer.Exit(int(ExitCode.DONE if proof is None or proof.ok else ExitCode.BUG))


def _costs(rows: Sequence[dict[str, Any]]) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("role", "fault", "n", *_STAMPS.values()):
        grid.add_column(title)
    for row in rows:
        seen = [row[name] for name in _STAMPS]
        cells = ["not seen" if one is None else f"{one['p50']:.1f} / {one['worst']:.1f}" for one in seen]
        grid.add_row(row["role"], row["kind"], str(row["faults"]), *cells)
    grid.caption = "seconds from the moment before the fault: median / worst"
    return grid


@app.command("set")
def set_fields(
    run: arguments.RunOrJob,
    changes: Annotated[list[str], typer.Argument(metavar="FIELD=VALUE...", help="Live fields and their new values.")],
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Change live fields of a run or of a job on a cluster while it goes on; prints what is in force then."""
    if (name := arguments.job_name(run)) is not None:
        load("areal_operator.job_commands:set_fields")(name, changes, namespace, kubeconfig, context, as_json=as_json)
        return
    from areal.local.inspect import HOT, set_hot
    from areal.spec.live import read_changes

    in_force = set_hot(arguments.existing(run), read_changes(changes, HOT))
    if as_json:
        print(json.dumps(in_force))
        return
    for field, value in in_force.items():
        print(f"{field}  {value}")
    print("they hold through restarts and --resume, until the job file is changed", flush=True)


def flat(report: dict[str, Any]) -> dict[str, Any]:
    """The audit's figures, with counts where it has lists and the lists beside them."""
    return {
        **report,
        "lost": len(report["lost"]),
        "duplicated": len(report["duplicated"]),
        "lostGroups": report["lost"],
        "duplicatedGroups": report["duplicated"],
    }


def _audit_table(report: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    reasons = ", ".join(f"{reason}={count}" for reason, count in report["tombstoned"].items()) or "none"
    grid.add_row("trained", f"{report['trained']} groups in {report['steps']} steps")
    grid.add_row("skipped", f"{report['skipped']} of them in updates that were not finite")
    grid.add_row("tombstoned", reasons)
    grid.add_row("lost", f"lost={report['lost']}", style="bold red" if report["lost"] else "")
    grid.add_row("duplicated", f"duplicated={report['duplicated']}", style="bold red" if report["duplicated"] else "")
    if report["ages"]:
        means, oldest, bounds = zip(*report["ages"].values(), strict=True)
        ahead = sorted(set(report["ahead"].values()))
        told = f"ahead {' or '.join(map(str, ahead))}, " if ahead else ""
        grid.add_row(
            "ages", f"mean {sum(means) / len(means):.2f}, oldest {max(oldest)}; {told}maxStaleness {max(bounds)}"
        )
    grid.add_row("in flight", str(report["pending"]))
    grid.add_row(
        "trainers", f"{report['trainers']} started; the run {'is' if report['finished'] else 'is not'} finished"
    )
    for problem in report["problems"]:
        grid.add_row("problem", problem, style="red")
    grid.add_row("verdict", "exactly once" if report["ok"] else "a promise is broken", style="bold")
    return grid


def _some(places: list[Path] | None) -> list[Path]:
    return places or [Path("runs")]


def _for_scripts(runs: Sequence[KeptRun]) -> list[dict[str, Any]]:
    return [{**asdict(run), "place": str(run.place)} for run in runs]


def _listed(runs: Sequence[KeptRun], *, whole: bool | None = None) -> Table:
    """Rows of runs; `whole` says which size is in question, None shows both."""
    from areal.local.view import size

    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    grid.add_column("run", overflow="fold")
    for title in ("status", "steps", "held-out", "last written"):
        grid.add_column(title, no_wrap=True)
    grid.add_column("on disk" if whole is None else "would go", justify="right")
    for run in runs:
        held_out = "—" if run.held_out is None else f"{run.held_out:.3f}"
        taken = run.spare if whole is False else run.size
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.ended))
        grid.add_row(str(run.place), run.status, str(run.steps), held_out, when, size(taken))
    return grid


def _compared(names: list[str], differences: dict[str, list[Any]], figures: dict[str, list[Any]]) -> Table:
    grid = Table(box=None, padding=(0, 2), header_style="bold")
    grid.add_column("")
    for name in names:
        grid.add_column(name, justify="right", overflow="fold")
    for field, values in differences.items():
        grid.add_row(field, *map(_shown, values), style="cyan")
    if not differences:
        grid.add_row("the jobs are equal", style="dim")
    grid.add_section()
    for figure, values in figures.items():
        grid.add_row(figure, *map(_shown, values))
    return grid


def _shown(value: Any) -> str:
    from areal.spec.locate import UNSET

    if value is None:
        return UNSET
    return f"{value:.3g}" if isinstance(value, float) else str(value)
