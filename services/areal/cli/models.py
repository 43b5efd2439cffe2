"""Commands that begin something: a project; and, as processes of their own because of torch, a model, a server."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from areal.cli.arguments import AsJson, commands
from areal.distribution import install
from areal.errors import BugError, ConfigError

_PASSED_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = commands()


@app.command("new")
def new_project(
    kind: Annotated[
        str, typer.Argument(metavar="task|reward|environment|agent|examples", help="What is to be written.")
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where; its last part names the job.")],
    model: Annotated[str | None, typer.Option(help="A model of your own, instead of a small new one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Begin a project: recipe, job, a test of the recipe, and a small task that trains as it is on two CPU cores.

    `examples` copies every example with its recipe and its data script; they run from DIR.
    """
    from areal.local.starter import EXAMPLES, KINDS, begin, copy_examples

    if kind not in (*KINDS, EXAMPLES):
        raise ConfigError(f"there is no project {kind!r}", fix=f"name one of {', '.join(KINDS)}, {EXAMPLES}")
    files = copy_examples(directory) if kind == EXAMPLES else begin(kind, directory, model)
    if as_json:
        print(json.dumps({"files": [str(file) for file in files]}))
        return
    print(*files, sep="\n")
    print(f"next: cd {directory}, and follow {'the first lines of a job' if kind == EXAMPLES else 'README.md'}")


@app.command("init-model", context_settings=_PASSED_ON)
def init_model(context: typer.Context) -> None:
    """Make a model of a million random weights, and a tokenizer of characters, for the quickstart and for tests."""
    _needs_torch("making a model", "trainer")
    raise typer.Exit(_run_module("areal_trainer.init_model", context.args))


@app.command(context_settings=_PASSED_ON)
def serve(context: typer.Context) -> None:
    """Serve a model directory, a finished run's model, or one of the hub, for development and evaluation."""
    _needs_torch("serving a model", "engine")
    os.execv(sys.executable, [sys.executable, "-m", "areal.engine.serve", *context.args])  # so that signals reach it


def _needs_torch(what: str, extra: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"{what} needs torch, which is not installed", fix=install(extra))


def _run_module(module: str, arguments: Sequence[str]) -> int:
    """`python -m module …` in this terminal; answers the exit code."""
    if importlib.util.find_spec(module) is None:
        raise BugError(f"this installation lacks {module}")
    with subprocess.Popen([sys.executable, "-m", module, *arguments]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the child got it, too
            return process.wait()
