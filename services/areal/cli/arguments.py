"""Arguments and options that several commands have."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from areal.cli.table import load
from areal.errors import ConfigError

_JOB = "rljob/"


def commands() -> typer.Typer:
    """An application for a module's commands; `areal.cli.table` says which module has which."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


def _read(job: str) -> Any:
    """The file's document, read once; what is none is refused before the command imports what understands jobs."""
    from areal.yaml_file.document import read_document

    if job == "-":
        return replace(read_document(Path("/dev/stdin")), path=Path("<stdin>"))  # its paths are those of a file here
    return read_document(Path(job))


def _runs(incomplete: str) -> list[str]:
    """Run directories in `runs/`, or below what was typed so far."""
    folder = Path(incomplete).parent if "/" in incomplete else Path("runs")
    found = (str(place.parent) for place in folder.glob("*/resolved.json"))
    return sorted(name for name in found if name.startswith(incomplete))


JobFile = Annotated[
    Any, typer.Argument(metavar="JOB.yaml", help="The job file; - is standard input.", show_default=False, parser=_read)
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FIELD=VALUE]...", help="Fields to override, for example algorithm.maxSteps=20."),
]
RunOrJob = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A run directory, rljob/NAME, or a run's address in a store.", autocompletion=_runs
    ),
]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="The job's; the context's unless given.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="How to reach the cluster; $KUBECONFIG unless given.")]
KubeContext = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig; its current one.")]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]
OneObject = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def job_name(run: Path) -> str | None:
    """The NAME of rljob/NAME; None for a run directory."""
    return str(run).removeprefix(_JOB) if str(run).startswith(_JOB) else None


def run_here(run: Path, namespace: str | None, kubeconfig: Path | None, context: str | None, *parts: str) -> Path:
    """The run's directory; of rljob/NAME, or of a run in an object store, one here, into which `parts` come first.

    Raises ConfigError, and InfraError where the cluster, its volume or the store can't be reached.
    """
    fetched: Path
    if address := load("areal.object_store:store_address")(run):
        fetched = load("areal.record.archive:fetched")(address, parts, partial(print, file=sys.stderr))
        return fetched
    if (name := job_name(run)) is None:
        return existing(run)
    fetched = load("areal_operator.commands:fetched")(name, namespace, kubeconfig, context, parts)
    return fetched


def existing(run_dir: Path) -> Path:
    """`run_dir`, when it is a run's. Raises ConfigError."""
    if not (run_dir / "resolved.json").is_file():
        raise ConfigError(f"{run_dir} is no run directory", fix="name one that `areal run` made, like runs/digits")
    return run_dir
