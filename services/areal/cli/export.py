"""`areal export`: recorded samples as a file, or figures to a tracker. Importing this imports typer only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

Form = Literal["jsonl", "parquet", "atif"]
Where = Literal["wandb", "mlflow", "trackio"]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, for example runs/digits.")],
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
) -> None:
    """Write recorded samples with their text, token ids, log-probabilities, spans and verdicts, for scripts; or, with
    --to, send every figure of a run to W&B, MLflow or Trackio.
    """
    from areal_view.index.forms import written
    from areal_view.run_files import open_run

    from areal.errors import ConfigError

    if to is not None:
        if (form, out, outcome, low, high, limit) != ("jsonl", None, None, None, None, 100_000):
            raise ConfigError("a tracker is sent figures, no samples", fix="give --to, --project and --follow only")
        _track(run, to, project, follow=follow)
        return
    if project is not None or follow:
        raise ConfigError("--project and --follow are for trackers", fix="name one: --to wandb")
    if out is None and form == "parquet":
        raise ConfigError("a Parquet file is written to a file", fix="name it with --out samples.parquet")
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
    typer.echo(f"wrote {len(rows):,} samples to {out}", err=True)


def _track(run: Path, to: Where, project: str | None, *, follow: bool) -> None:
    from areal_view.run_files import open_run
    from areal_view.tracking.export import PROJECT, export

    sent, place = export(open_run(run).directory, to, project or PROJECT, follow=follow)
    typer.echo(f"sent {sent:,} steps and evaluations; {place}", err=True)
