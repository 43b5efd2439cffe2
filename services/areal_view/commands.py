"""Commands that look at runs: why, view, report, export, and the page of a cluster's jobs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from areal.cli import arguments
from areal.cli.table import load
from areal.errors import ConfigError, ExitCode
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from areal.observe.live import Diagnosis

Form = Literal["jsonl", "parquet", "atif"]
Where = Literal["wandb", "mlflow", "trackio"]

app = arguments.commands()


@app.command("why")
def why_run(
    run: arguments.RunOrJob,
    as_json: arguments.AsJson = False,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write what a report of a hang needs into this zip: versions, waits, stacks, logs."),
    ] = None,
    slow: Annotated[
        bool, typer.Option("--slow", help="Show where the time of the newest steps went, and what changes would bring.")
    ] = False,
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Say in one sentence what a run waits for: which role, since when, and what to do. Also of a run that died, and
    of a job on a cluster.
    """
    name = arguments.job_name(run)
    if name is not None and bundle is not None:
        raise ConfigError("--bundle reads a run directory", fix=f"fetch it first: areal pull {run}")
    if slow:
        from areal_view.pages.slow import show_slow

        here = arguments.run_here(run, namespace, kubeconfig, context, "journal") if name is not None else None
        show_slow(here or arguments.existing(run), as_json=as_json)
        return
    if name is not None:
        load("areal_operator.job_commands:show_why")(name, namespace, kubeconfig, context, as_json=as_json)
        return
    from areal.observe.causes import why
    from areal.observe.live import read_live
    from areal.plan import RunLayout

    live = read_live(RunLayout(arguments.existing(run)).live)
    if bundle is not None:
        from areal_view import bundle as packing

        names = packing.write(run, bundle)
        print(f"wrote {bundle}: {', '.join(names)}; look at it before you send it", file=sys.stderr)
    if live is None:
        raise ConfigError(
            f"{run} never said what it does",
            fix="start it with `areal run`; of a job on a cluster, ask `areal why rljob/NAME`",
        )
    show_answer(why(live), as_json=as_json)


@app.command("plan")
def plan_gpus(
    job: arguments.JobFile,
    gpus: Annotated[list[int], typer.Option(min=1, help="How many in all; may be given again.")],
    overrides: arguments.Overrides = None,
    run: Annotated[
        Path | None, typer.Option(help="Take the constants of this run; of the job's newest in runs/ unless given.")
    ] = None,
    card: Annotated[str | None, typer.Option(help="Take those of a model on a card, from the built-in table.")] = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Tell the throughput on so many GPUs, what each side waits, how old tokens get, and the best split between
    generation and training. A model: it says what it was measured on, and how far off it is there.
    """
    from areal.spec.load import job_from

    from areal_view.pages.scaling import show_plan

    show_plan(job_from(job, overrides or ()), gpus, run and arguments.existing(run), card, as_json=as_json)


@app.command()
def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS]...",
            help="Runs, or directories of runs; runs/ unless given. Or rljob/NAME, one job on a cluster.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen, on loopback; 0 picks one.")] = 0,
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Show runs, live ones and finished ones, as a web page: steps, groups, samples, tokens. Ends with Ctrl-C."""
    if runs and len(runs) == 1 and (name := arguments.job_name(runs[0])) is not None:
        load("areal_operator.job_commands:show_page")(name, namespace, kubeconfig, context, port)
        return
    from areal_view.pages.main import serve

    serve(runs or [Path("runs")], port)


@app.command()
def report(
    run: arguments.RunOrJob,
    as_json: arguments.AsJson = False,
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Write report.html of a run again, also while it goes on."""
    from areal.local.finish import report as write_report

    file = write_report(arguments.run_here(run, namespace, kubeconfig, context, "journal").absolute())
    print(json.dumps({"file": str(file)}) if as_json else f"wrote {file}")


@app.command()
def export(
    run: arguments.RunOrJob,
    form: Annotated[Form, typer.Option("--as", help="ATIF has a trajectory a line; Parquet needs pyarrow.")] = "jsonl",
    out: Annotated[Path | None, typer.Option(help="The file to write; standard output unless given.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only samples that ended so: complete, truncated, deadline, exception, infra …")
    ] = None,
    low: Annotated[float | None, typer.Option(help="Only rewards from this one on.")] = None,
    high: Annotated[float | None, typer.Option(help="Only rewards up to this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100_000,
    to: Annotated[
        Where | None, typer.Option(help="Send metrics and evaluations to a tracker instead, those it has not got.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Its project, of MLflow the experiment; areal unless given.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on sending until the run ends.")] = False,
    as_json: arguments.AsJson = False,
    namespace: arguments.Namespace = None,
    kubeconfig: arguments.Kubeconfig = None,
    context: arguments.KubeContext = None,
) -> None:
    """Write recorded samples with their text, token ids, log-probabilities, spans and verdicts, for scripts; or, with
    --to, send every figure of a run to W&B, MLflow or Trackio.
    """
    from areal_view.index.forms import written
    from areal_view.library import open_run

    if arguments.job_name(run) is not None:
        if follow:
            raise ConfigError("--follow reads a run directory", fix="leave it out, and send again later")
        run = arguments.run_here(run, namespace, kubeconfig, context, "recording", "trajectories")
    if to is not None:
        if (form, out, outcome, low, high, limit) != ("jsonl", None, None, None, None, 100_000):
            raise ConfigError("a tracker is sent figures, no samples", fix="give --to, --project and --follow only")
        _track(run, to, project, follow=follow, as_json=as_json)
        return
    if project is not None or follow:
        raise ConfigError("--project and --follow are for trackers", fix="name one: --to wandb")
    if out is None and form == "parquet":
        raise ConfigError("a Parquet file is written to a file", fix="name it with --out samples.parquet")
    if out is None and as_json:
        raise ConfigError("samples go where --json says how many there are", fix="name a file: --out samples.jsonl")
    found = open_run(run)
    with found.index() as index:
        rows = index.find(outcome=outcome, low=low, high=high, limit=limit)
        chunks = written(form, index, rows, found.directory.name)
        if out is None:
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
            return
        part = out.with_name(f".{out.name}.part")
        with part.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
        part.replace(out)
    if as_json:
        print(json.dumps({"samples": len(rows), "file": str(out)}))
    else:
        typer.echo(f"wrote {len(rows):,} samples to {out}", err=True)


def _track(run: Path, to: Where, project: str | None, *, follow: bool, as_json: bool) -> None:
    from areal_view.library import open_run
    from areal_view.tracking.export import PROJECT, export

    sent, place = export(open_run(run).directory, to, project or PROJECT, follow=follow)
    if as_json:
        print(json.dumps({"sent": sent, "place": place}))
    else:
        typer.echo(f"sent {sent:,} steps and evaluations; {place}", err=True)


@app.command("jobs-page")
def jobs_page(
    namespace: Annotated[
        list[str] | None, typer.Option(help="List this one; may be given again. All unless given.")
    ] = None,
    job_address: Annotated[
        str, typer.Option(help="Where a job's own page is: https://{name}.{namespace}.rl.example.com")
    ] = "",
    bind: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 8000,
) -> None:
    """Serve a web page with the RLJobs that each visitor may list, who logs in with a Kubernetes token. It is what the
    chart's pod `jobs` runs, and needs no right in the cluster.
    """
    from areal_view.pages.main import serve_jobs

    serve_jobs(namespace or (), job_address, bind, port)


def show_answer(answer: Diagnosis, *, as_json: bool) -> None:
    """Print an answer for people or for scripts."""
    if as_json:
        import orjson

        sys.stdout.buffer.write(orjson.dumps({**asdict(answer), "sentence": answer.sentence}) + b"\n")
        return
    print(answer.named)
    if answer.fix:
        print(f"  fix: {answer.fix}")


def audit_tokens(run: Path, *, as_json: bool) -> int:
    """`areal audit --tokens`: the exit code is not 0 when a trained token is not one that was sampled."""
    from areal_view.index.token_audit import audit_tokens

    report = audit_tokens(run)
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
