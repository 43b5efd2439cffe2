"""`areal eval …`: parses; the evaluations are in `areal.evaluate`. Importing this imports typer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

TierName = Literal["T0", "T2", "T3", "T4"]

eval_app = typer.Typer(no_args_is_help=True, help="Measure programs on public problem sets.", rich_markup_mode=None)


@eval_app.command(
    epilog="Examples:\n\n  areal eval humaneval --canonical\n\n  areal eval humaneval --wrong --json\n\n"
    "  areal eval humaneval --samples samples.jsonl --k 1 --k 10",
    short_help="HumanEval: reference solutions, samples, or wrong ones.",
)
def humaneval(
    canonical: Annotated[
        bool, typer.Option("--canonical", help="Judge the reference solutions: all must pass.")
    ] = False,
    samples: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help='Judge samples: a line {"task_id": …, "completion": …} each.'),
    ] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Judge deliberately wrong solutions: none may pass.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Programs judged at once; 0 is one a core.")] = 0,
    k: Annotated[list[int] | None, typer.Option(help="Report pass@K; may be given again.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds a task may take.")] = 10.0,
    min_tier: Annotated[TierName, typer.Option(help="Refuse a sandbox below this tier.")] = "T2",
    highest_tier: Annotated[TierName, typer.Option(help="Use no more than this tier offers.")] = "T4",
) -> None:
    """Judge programs for HumanEval's 164 problems in the sandbox, and report how many pass.

    The exit code is 0 when all reference solutions passed (--canonical), no wrong solution passed (--wrong), or all
    samples were judged (--samples).
    """
    from areal.cli.evaluate_humaneval import Asked, humaneval_command

    asked = Asked(canonical, samples, wrong, as_json, limit, jobs, tuple(k or (1,)), timeout, min_tier, highest_tier)
    raise typer.Exit(humaneval_command(asked))
