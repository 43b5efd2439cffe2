"""The `areal` command: parses, calls, and turns errors into one message and an exit code.

Importing this module imports typer and nothing of ours but the errors and the table of commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from areal import __version__
from areal.cli.table import COMMANDS, HIDDEN, LoadedCommands
from areal.distribution import refuse_upstream
from areal.errors import ArealError, ExitCode

HELP = """Asynchronous reinforcement learning for language models: one job file, anywhere.

A first run:  areal run examples/quickstart.yaml
"""

_USAGE = 2  # of typer's parser, for a command line that it can't read


class _CommandGroup(TyperGroup):
    """The commands of the table; help lists them without importing any."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LoadedCommands(self.commands)  # type: ignore[assignment]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, line) for name, (_, line) in COMMANDS.items() if name not in HIDDEN]
        with formatter.section("Commands"):
            formatter.write_dl([*rows, ("version", "Print the version.")])


app = typer.Typer(
    cls=_CommandGroup,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What every command has."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def command_line() -> None:
    """Parse the arguments and run the command."""
    refuse_upstream()
    app()


def guarded(call: Callable[[], Any]) -> int:
    """Run the command line; every error becomes one message on standard error and an exit code."""
    try:
        call()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        return int(ExitCode.CONFIG) if code == _USAGE else code
    except ArealError as error:
        with suppress(OSError):  # a closed terminal
            _complain(error)
            if error.exit_code is ExitCode.BUG:
                _trace(error)
        return int(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        return int(ExitCode.DRAINED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 0
    except Exception as error:
        with suppress(OSError):
            typer.secho(f"internal error: {type(error).__name__}: {error}", fg="red", err=True)
            _trace(error)
        return int(ExitCode.BUG)
    return 0


def _complain(error: ArealError) -> None:
    typer.secho(f"{error.kind} error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(error.message, err=True)
    if error.fix:
        typer.secho("  fix: ", fg="green", err=True, nl=False)
        typer.echo(error.fix, err=True)


def _trace(error: BaseException) -> None:
    """Our own faults come with a traceback when one is asked for."""
    if os.environ.get("AREAL_TRACEBACK"):
        import traceback

        traceback.print_exception(error)
    else:
        typer.echo("  AREAL_TRACEBACK=1 shows where; please report it", err=True)


def main() -> None:
    """Console entry."""
    sys.exit(guarded(command_line))


if __name__ == "__main__":
    main()
