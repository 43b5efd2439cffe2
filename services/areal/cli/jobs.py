"""Commands on a job file: run, check, prepare. What understands jobs is imported when one runs."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from areal.cli.arguments import AsJson, JobFile, Overrides, commands

app = commands()


@app.command()
def run(
    job: JobFile,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run lives; runs/<name> unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the directory.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; an earlier run there is moved aside.")] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=A,B,C", help="Run a variant for each value (again for combinations) and compare."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, max=100, help="Run each variant with so many seeds.")] = 0,
    on: Annotated[
        str | None,
        typer.Option(metavar="slurm|ray", help="On the nodes of a Slurm job, this one or new, or of a Ray cluster."),
    ] = None,
    slurm: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="An option of sbatch, like nodes=2; may be given again.")
    ] = None,
    ray: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="nodes=2, cpus=16, gpus=8 of each, address=HOST:PORT; may be given again."),
    ] = None,
    hosts_command: Annotated[str, typer.Option(help="Goes before each role's program: a container's command.")] = "",
) -> None:
    """Run a job on this machine, or on those of Slurm or Ray, and watch it."""
    from areal.local.display import lossy_console
    from areal.local.run import run_job
    from areal.local.staging import StagingRequest

    request = StagingRequest(job.path, overrides or (), run_dir, resume, fresh, document=job)
    if on is not None or slurm or ray or hosts_command:
        from areal.errors import ConfigError

        if on not in ("slurm", "ray") or (ray if on == "slurm" else slurm) or sweep or seeds:
            fix = "write --on slurm --slurm OPTION, or --on ray --ray OPTION"
            raise ConfigError("--slurm, --ray and --hosts-command go with --on of their kind, sweeps don't", fix=fix)
        from areal.hosts.run import run_on_ray, run_on_slurm

        start = run_on_slurm if on == "slurm" else run_on_ray
        raise typer.Exit(start(request, slurm or ray or (), shlex.split(hosts_command), lossy_console()))
    if sweep or seeds:
        from areal.local.sweep import run_sweep, variants

        raise typer.Exit(run_sweep(request, variants(sweep or (), range(seeds)), lossy_console()))
    raise typer.Exit(run_job(request, lossy_console()))


@app.command()
def study(
    what: Annotated[
        str, typer.Argument(metavar="staleness|sweep", help="η with and without correction, or any sweep.")
    ],
    job: JobFile,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where its runs live; runs/<name>-study unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what isn't complete.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; an earlier study there is moved aside.")] = False,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Run each variant with so many seeds.")] = 3,
    eta: Annotated[str, typer.Option(help="staleness: which η, beside an unbounded one.")] = "0,1,2,4,8,16",
    sweep: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=A,B,C", help="sweep: a variant for each value; again to combine.")
    ] = None,
    random: Annotated[int, typer.Option(min=0, help="sweep: only so many of the combinations, drawn at random.")] = 0,
    halving: Annotated[
        bool, typer.Option("--halving", help="sweep: stop the worse half early, again and again (successive halving).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts: print study.json; the rest to stderr.")] = False,
) -> None:
    """Run variants of a job with several seeds, say first what that costs, rank them with 95 % intervals, draw them."""
    from areal.errors import ConfigError
    from areal.local.display import lossy_console
    from areal.local.staging import StagingRequest
    from areal.local.study import etas_of, grid, run_study, staleness

    if what not in ("staleness", "sweep") or (what == "sweep") != bool(sweep):
        raise ConfigError(
            f"`areal study {what}` {'with' if sweep else 'without'} --sweep is no study",
            fix="write `areal study staleness JOB.yaml`, or `areal study sweep JOB.yaml --sweep FIELD=A,B,C`",
        )
    plan = (
        staleness(seeds, etas_of(eta))
        if what == "staleness"
        else grid(sweep or (), seeds, draw=random, halving=halving)
    )
    request = StagingRequest(job.path, overrides or (), run_dir, resume, fresh, document=job)
    raise typer.Exit(run_study(request, plan, lossy_console(stderr=as_json), as_json=as_json))


@app.command()
def check(
    job: JobFile,
    overrides: Overrides = None,
    as_json: AsJson = False,
    model_config: Annotated[
        Path | None, typer.Option(help="A config.json to plan memory by, where the model isn't on this machine.")
    ] = None,
    graph: Annotated[
        str | None, typer.Option(metavar="FILE.svg|-", help="Draw the stages of a step, as text (-) or into a file.")
    ] = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write a file of an earlier release anew, with fields where they are now.")
    ] = False,
) -> None:
    """Validate a job file and explain what it means, without running anything."""
    if rewrite:
        from areal.cli.check import rewrite_command

        raise typer.Exit(rewrite_command(job))
    if graph is not None:
        from areal.cli.check import graph_command

        raise typer.Exit(graph_command(job, overrides or (), graph))
    from areal.cli.check import check_command

    raise typer.Exit(check_command(job, overrides or (), as_json=as_json, model_config=model_config))


@app.command("try")
def try_row(
    job: JobFile,
    overrides: Overrides = None,
    row: Annotated[int, typer.Option(min=1, help="Which training row; the first is 1.")] = 1,
    answer: Annotated[
        str | None, typer.Option(help="What is answered, at each turn; the job's model answers unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Play one row: prompt, answer, reward and its parts, figures, times, or the line of the recipe where it fails."""
    from areal.cli.trial import try_command
    from areal.local.display import lossy_console

    found = try_command(job, overrides or (), row=row, answer=answer, as_json=as_json, console=lossy_console())
    raise typer.Exit(found)


@app.command()
def prepare(
    job: JobFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; into runs/<name>, for its run, unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the indexed, digested snapshots of a job's datasets, and say what is in them."""
    from rich.console import Console
    from rich.table import Table

    from areal.admit.resolve import verifier_of
    from areal.admit.rows import LongPrompts, prepare_split, required_columns, rows_in_words
    from areal.admit.sources import sources_of
    from areal.plan import RunLayout
    from areal.spec.load import job_from

    made, base_dir = job_from(job, overrides or ()), job.path.absolute().parent
    sources = sources_of(made, base_dir, strict=True)
    required = required_columns(made, verifier_of(made, sources.recipe))
    root = out or RunLayout(Path("runs") / made.metadata.name).dataset
    console = Console(stderr=as_json)
    told: dict[str, dict[str, Any]] = {}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("split", "rows", "digest", "columns", "directory"):
        table.add_column(title)
    for split, source in (("train", sources.dataset.train), ("evaluation", sources.dataset.evaluation)):
        if source is None:
            continue
        with console.status(f"reading {split}") as status:

            def show(rows: int, split: str = split, status: object = status) -> None:
                status.update(f"reading {split}: {rows} rows")  # type: ignore[attr-defined]

            tokenizer = sources.tokenizer or root  # what `longPrompts: drop` needs is missing at a run's start as well
            drops = LongPrompts.of(made, split, tokenizer, sources.model)
            snapshot = prepare_split(source, root / split, split, sources.recipe, required, drops, show)
        said = {"rows": len(snapshot), "leftOut": dict(snapshot.meta.left_out), "columns": snapshot.columns}
        told[split] = {**said, "digest": snapshot.digest, "directory": str(root / split)}
        columns = ", ".join(f"{name} ({kind})" for name, kind in snapshot.columns.items())
        table.add_row(
            split, rows_in_words(snapshot).removesuffix(" rows"), snapshot.digest[:12], columns, str(root / split)
        )
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        console.print(table)
