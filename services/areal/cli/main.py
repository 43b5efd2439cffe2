"""The `areal` command: parses, calls, and turns errors into one message and an exit code.

Importing this module imports typer and nothing of ours but the errors and the table of commands.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer
from typer.core import CompletionItem, TyperGroup  # type: ignore[attr-defined]

from areal import __version__
from areal.cli.table import COMMANDS, HIDDEN, LoadedCommands
from areal.distribution import command, missing_package, refuse_upstream
from areal.errors import ArealError, ConfigError, ExitCode, as_bug, of_machine

HELP = """Asynchronous reinforcement learning for language models: one job file, anywhere.

A first run:  areal run examples/quickstart.yaml
"""

_USAGE = 2  # of typer's parser, for a command line that it can't read


class _CommandGroup(TyperGroup):
    """The commands of the table; help lists them without importing any."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LoadedCommands(self.commands)  # type: ignore[assignment]

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Under --json whatever goes wrong is one JSON object on standard output."""
        if "--json" not in [*ctx._protected_args, *ctx.args]:
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            raise typer.Exit(_json_error(error)) from error

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Names of commands, without an import of any; else options."""
        lines = {name: line for name, (_, line) in COMMANDS.items() if name not in HIDDEN}
        found = [CompletionItem(name, help=line) for name, line in lines.items() if name.startswith(incomplete)]
        return found or super().shell_complete(ctx, incomplete)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, line) for name, (_, line) in COMMANDS.items() if name not in HIDDEN]
        with formatter.section("Commands"):
            formatter.write_dl([*rows, ("version", "Print the version.")])


app = typer.Typer(
    cls=_CommandGroup,
    help=HELP,
    no_args_is_help=True,
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
    """Options of every command."""


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
        return _refused(error)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        return int(ExitCode.DRAINED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 0
    except Exception as error:
        return _refused(_ours(error), error)
    return 0


def _ours(error: Exception) -> ArealError:
    """An error that nobody expected: a package that isn't here, a machine that is full, or our own fault."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("areal"):
        return missing_package(error)
    return of_machine(error) or as_bug(error)


def _json_error(error: Exception) -> int:
    """Print an error for scripts; returns its exit code."""
    told = error if isinstance(error, ArealError) else _ours(error)
    if (usage := getattr(error, "format_message", None)) is not None:  # the parser's
        told = ConfigError(usage(), fix="see the command's --help")
    places = [asdict(problem) for problem in getattr(told, "problems", ())]
    shown = {
        "ok": False,
        "code": int(told.exit_code),
        "kind": told.kind.value,
        "cause": told.cause,
        "message": told.message,
    }
    print(json.dumps({**shown, "fix": told.fix, "places": places}, indent=2), flush=True)
    return int(told.exit_code)


def _refused(error: ArealError, raised: BaseException | None = None) -> int:
    named = "" if error.cause.value == error.kind.value else f" [{error.cause}]"
    if os.environ.get("AREAL_ERROR_FILE"):  # who starts a command from a program gets the error itself
        from areal.processes.exits import write_error

        write_error(error)
    with suppress(OSError):  # a closed terminal
        _styled(f"{error.kind} error{named}: ", fg="red", bold=True)
        typer.echo(error.message, err=True)
        if error.fix:
            _styled("  fix: ", fg="green")
            typer.echo(error.fix, err=True)
            if (here := command()) != "areal":
                typer.echo(f"  `areal` is not on this shell's PATH: it is {here}", err=True)
        if error.exit_code is ExitCode.BUG and os.environ.get("AREAL_TRACEBACK"):
            import traceback

            traceback.print_exception(raised or error)
        elif error.exit_code is ExitCode.BUG:
            typer.echo("  AREAL_TRACEBACK=1 shows the whole stack", err=True)
    return int(error.exit_code)


def _styled(text: str, **style: Any) -> None:
    """Write to standard error, in colour where a terminal shows it and NO_COLOR isn't set."""
    typer.secho(text, err=True, nl=False, color=False if os.environ.get("NO_COLOR") else None, **style)


def main() -> None:
    """Console entry."""
    sys.exit(guarded(command_line))


if __name__ == "__main__":
    main()
