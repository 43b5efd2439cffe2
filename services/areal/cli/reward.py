"""`areal reward …`: parses; what it calls is imported when a command runs. Importing this imports typer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

TierName = Literal["T0", "T2", "T3", "T4"]

reward_app = typer.Typer(no_args_is_help=True, help="Judge programs in the sandbox.", rich_markup_mode=None)


@reward_app.command(
    "try",
    epilog='Examples:\n\n  echo \'{"kind":"stdio","cases":[{"stdin":"2","expected":"4"}]}\' > suite.json\n\n'
    "  areal reward try solution.py --suite suite.json\n\n  areal reward try solution.cpp --suite "
    "problems.jsonl:12\n\n  areal reward try answer.md --completion --suite row.json --json",
    short_help="Judge one program by one suite, case by case.",
)
def try_(
    solution: Annotated[Path, typer.Argument(metavar="SOLUTION", help="The program.", show_default=False)],
    suite: Annotated[
        str, typer.Option(metavar="FILE[:LINE]", help="A suite or dataset row as .json, or a line of a .jsonl.")
    ],
    format: Annotated[str, typer.Option(help="The row's format; found by its columns unless given.")] = "auto",
    language: Annotated[
        str | None, typer.Option(help="The program's; by its file name unless given, Python in a completion.")
    ] = None,
    completion: Annotated[
        bool, typer.Option("--completion", help="The file is a model's completion: judge the program in it.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop at the first case that fails.")] = False,
    total: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds for all cases together.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    min_tier: Annotated[TierName, typer.Option(help="Refuse a sandbox below this tier.")] = "T2",
    highest_tier: Annotated[TierName, typer.Option(help="Use no more than this tier offers.")] = "T4",
) -> None:
    """Judge a program by a suite, in this machine's sandbox, and show what every case did.

    The exit code is 0 only when the program passed, and 1 when it did not. Anything else is not its doing: 64 an
    argument or this machine's tier, 65 the suite, 75 the machine (try again).
    """
    from areal.cli.reward_try import Asked, try_command

    asked = Asked(solution, suite, format, language, completion, stop, total, as_json, min_tier, highest_tier)
    raise typer.Exit(try_command(asked))


@reward_app.command(
    epilog="Examples:\n\n  areal reward capabilities\n\n  areal reward capabilities --json",
    short_help="Show what this machine's sandbox promises and runs.",
)
def capabilities(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Try what each tier forbids, and show the tier, what it stops and leaves, and the languages that run here."""
    from areal.cli.reward_capabilities import capabilities_command

    raise typer.Exit(capabilities_command(as_json=as_json))


@reward_app.command(
    epilog="Examples:\n\n  areal reward serve --token-file token &\n\n  curl localhost:7651/readyz\n\n"
    '  auth="Authorization: Bearer $(cat token)"\n\n'
    '  curl -H "$auth" localhost:7651/v1/execute -d \'{"program": {"source": "print(3)"}}\'',
    short_help="Serve the sandbox to others, by gRPC and HTTP.",
)
def serve(
    host: Annotated[str, typer.Option(help="Address of all ports.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Of gRPC; 0 picks one.")] = 7650,
    http_port: Annotated[int, typer.Option(help="Of HTTP; 0 picks one.")] = 7651,
    metrics_port: Annotated[int | None, typer.Option(help="Of /metrics; none unless given.")] = None,
    min_tier: Annotated[TierName, typer.Option(help="Do not start below this tier.")] = "T2",
    highest_tier: Annotated[TierName, typer.Option(help="Use no more than this tier offers.")] = "T4",
    token_file: Annotated[
        Path | None, typer.Option(help="Holds the bearer token; made when missing. Without: a token for this time.")
    ] = None,
    slots: Annotated[int, typer.Option(min=0, help="Programs judged at once; 0 is one a core and a few more.")] = 0,
    boxes: Annotated[int, typer.Option(min=0, help="Boxes at once, which live over many commands; 0 serves none.")] = 0,
) -> None:
    """Judge and run programs for whoever has the token, until SIGTERM."""
    from areal.cli.reward_serve import serve_command

    raise typer.Exit(
        serve_command(
            host, port, http_port, metrics_port, min_tier, token_file, slots, highest_tier=highest_tier, boxes=boxes
        )
    )
