"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from areal.errors import ConfigError

_JOB = "rljob/"


def commands() -> typer.Typer:
    """An application for a module's commands; `areal.cli.table` says which module has which."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


def _read(job: str) -> Any:
    """The file's document, read once; what is none is refused before the command imports what understands jobs."""
    from areal.yaml_file.document import read_document

    return read_document(Path(job))


JobFile = Annotated[Any, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False, parser=_read)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FIELD=VALUE]...", help="Fields to override, for example algorithm.maxSteps=20."),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, for example runs/digits.")]
RunOrJob = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or rljob/NAME for a job on a cluster.")]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="The job's; the context's unless given.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="How to reach the cluster; $KUBECONFIG unless given.")]
KubeContext = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig; its current one.")]
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]
OneObject = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def job_name(run: Path) -> str | None:
    """The NAME of rljob/NAME; None for a run directory."""
    return str(run).removeprefix(_JOB) if str(run).startswith(_JOB) else None


def existing(run_dir: Path) -> Path:
    """`run_dir`, when it is a run's. Raises ConfigError."""
    if not (run_dir / "resolved.json").is_file():
        raise ConfigError(f"{run_dir} is no run directory", fix="name one that `areal run` made, like runs/digits")
    return run_dir
