"""Commands about a run directory: status, audit, report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from areal.errors import ConfigError, ExitCode


def existing(run_dir: Path) -> Path:
    """`run_dir`, when it is a run's."""
    if not (run_dir / "resolved.json").is_file():
        raise ConfigError(f"{run_dir} is no run directory", fix="name one that `areal run` made, like runs/digits")
    return run_dir


def status_command(run_dir: Path, *, as_json: bool) -> None:
    """`areal status`."""
    from areal.local import inspect

    existing(run_dir)
    try:
        picture = inspect.look(run_dir)
    except ConfigError as error:
        if outcome := inspect.ended(run_dir):
            raise ConfigError(f"{run_dir} does not run; it ended: {outcome}", fix=error.fix) from error
        raise
    if as_json:
        sys.stdout.buffer.write(inspect.as_json(picture) + b"\n")
    else:
        Console().print(inspect.table(picture))


def why_command(run_dir: Path, *, as_json: bool, bundle: Path | None = None) -> None:
    """`areal why`."""
    from areal_view.why.causes import why
    from areal_view.why.live import read_live

    from areal.cli.job_why import show
    from areal.plan import RunLayout

    live = read_live(RunLayout(existing(run_dir)).live)
    if bundle is not None:
        from areal.local import bundle as packing

        names = packing.write(run_dir, bundle)
        print(f"wrote {bundle}: {', '.join(names)}; look at it before you send it", file=sys.stderr)
    if live is None:
        raise ConfigError(
            f"{run_dir} never said what it does",
            fix="start it with `areal run`; of a job on a cluster, ask `areal why rljob/NAME`",
        )
    show(why(live), as_json=as_json)


def slow_command(run_dir: Path, *, as_json: bool) -> None:
    """`areal why --slow`."""
    from areal.cli import slow

    slow.slow_command(existing(run_dir), as_json=as_json)


def view_command(places: list[Path], port: int) -> None:
    """`areal view`."""
    from areal_view.pages.main import serve

    serve(places, port)


def audit_command(run_dir: Path, *, as_json: bool) -> int:
    """`areal audit`: the exit code is not 0 when a promise is broken."""
    import json

    from areal.ledger.audit import audit

    report = audit(existing(run_dir))
    if as_json:
        print(json.dumps(flat(report.to_json()), indent=2))
    else:
        Console().print(_audit_table(flat(report.to_json())))
    return int(ExitCode.DONE if report.ok else ExitCode.BUG)


def audit_tokens_command(run_dir: Path, *, as_json: bool) -> int:
    """`areal audit --tokens`: the exit code is not 0 when a trained token is not the one that was sampled."""
    import json

    from areal_view.index.token_audit import audit_tokens

    report = audit_tokens(existing(run_dir))
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        Console().print(_tokens_table(report.to_json()))
    return int(ExitCode.DONE if report.ok else ExitCode.BUG)


def _tokens_table(report: dict[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_row("trained", f"{report['trained']}", "tokens that a gradient could reach")
    grid.add_row(
        "equal", f"{report['equal']}", "of them, in id, log-probability, version, temperature and what was fed"
    )
    if report["unwitnessed"]:
        grid.add_row("unwitnessed", f"{report['unwitnessed']}", "of them, where a journal is not whole", style="yellow")
    for what, count in report["faults"].items():
        grid.add_row("wrong", f"{count}", what, style="bold red")
    grid.add_row("sampled", f"{report['sampled']}", "tokens that servers made")
    for why, count in report["untrained"].items():
        grid.add_row("untrained", f"{count}", why)
    for gap in report["gaps"]:
        grid.add_row("gap", "", gap, style="yellow")
    for example in report["examples"]:
        grid.add_row("example", "", example, style="red")
    if report["ok"]:
        verdict = "every trained token is the one that was sampled"
        if report["unwitnessed"]:
            verdict += ", as far as the journals reach"
    else:
        verdict = "what was trained is not what was sampled" if report["faults"] else "nothing could be compared"
    grid.add_row("verdict", "", verdict, style="bold")
    return grid


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
    grid.add_row("in flight", str(report["pending"]))
    grid.add_row(
        "trainers", f"{report['trainers']} started; the run {'is' if report['finished'] else 'is not'} finished"
    )
    for problem in report["problems"]:
        grid.add_row("problem", problem, style="red")
    grid.add_row("verdict", "exactly once" if report["ok"] else "a promise is broken", style="bold")
    return grid


def report_command(run_dir: Path) -> None:
    """`areal report`."""
    from areal_view.pages import site

    from areal.ledger.audit import audit
    from areal.plan import RunLayout
    from areal.record.episode_ends import read_ends
    from areal.record.run_rows import Records
    from areal.stage import picture, summary

    layout = RunLayout(existing(run_dir).absolute())
    records = Records(layout.metrics, layout.evaluations).refresh()
    result = summary.read(layout.summary)
    if result is None:  # it goes on, or was killed: what is known so far
        wall = records.steps[-1].at - records.steps[0].at if records.steps else 0.0
        ending = summary.RunEnd("Running", max(0.0, wall), {}, 0)
        result = summary.make(ending, records, audit(layout.root), ends=read_ends(layout.episode_ends))
    target = site.write(layout.root, result)
    why = picture.draw(layout.root)
    console = Console()
    console.print(f"wrote {target}", highlight=False, soft_wrap=True)
    console.print(f"no report.png: {why}" if why else f"wrote {layout.report_png}", highlight=False, soft_wrap=True)
