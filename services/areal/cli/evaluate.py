"""`areal eval …`: parses; the evaluations are in `areal_judge.evaluate`. Importing this imports typer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

TierName = Literal["T0", "T2", "T3", "T4"]
SuiteName = Literal["gsm8k", "math", "aime", "livecodebench", "humaneval", "mbpp"]

eval_app = typer.Typer(help="Measure a model on a public test set, or programs for HumanEval.", rich_markup_mode=None)


@eval_app.callback(
    invoke_without_command=True,
    epilog="Examples:\n\n  areal eval --suite gsm8k --model runs/digits/model --data test.jsonl --limit 100\n\n"
    "  areal eval --suite aime --model hf://Qwen/Qwen3-0.6B --download --samples 16 --k 1 --k 16\n\n"
    "  areal eval --suite livecodebench --model runs/x/exports/best --data lcb.jsonl --out answers.jsonl\n\n"
    "  areal eval --suite math --model http://localhost:8000 --json",
)
def suite(
    context: typer.Context,
    suite: Annotated[
        SuiteName | None, typer.Option(help="Which test set; its rows are graded by math or by tests.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL|RUN|ADDRESS", help="A model directory, a run, hf://owner/name, or a server's address."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|FOLDER",
            help="Rows as .jsonl, .csv, .parquet or a folder of .json; else the Hugging Face cache.",
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Allow to download the rows, and a model of hf://, from the hub.")
    ] = False,
    samples: Annotated[int, typer.Option(min=1, max=1024, help="Answers to each question.")] = 1,
    k: Annotated[list[int] | None, typer.Option(min=1, help="Report pass@K; may be given again.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=10, help="0 (greedy) for one sample, else 0.6, unless given.")
    ] = None,
    top_p: Annotated[float, typer.Option(min=1e-6, max=1, help="Keep the likeliest tokens up to this mass.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 2048,
    seed: Annotated[int, typer.Option(min=0, help="Of sampling; sample i has seed + i.")] = 0,
    instruction: Annotated[
        str | None, typer.Option(help='Follows each question instead of the usual words; "" adds nothing.')
    ] = None,
    concurrent: Annotated[int, typer.Option(min=1, max=1024, help="Answers asked for at once.")] = 32,
    key: Annotated[str, typer.Option(envvar="AREAL_SERVE_KEY", help="API key of the server.")] = "",
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="What a model that is served for this is computed in.")
    ] = "float32",
    min_tier: Annotated[TierName, typer.Option(help="Refuse a sandbox for programs below this tier.")] = "T2",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Write every answer and its grade there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask a model the questions of a test set and grade its answers as in training.

    A run that goes on is measured by its newest published version. Nothing is downloaded without --download. The exit
    code is 0 when every answer was graded.
    """
    if context.invoked_subcommand is not None:
        return
    if suite is None or model is None:
        missing = "--suite" if suite is None else "--model"
        raise typer.BadParameter(f"give {missing} (see areal eval --help)")
    from areal.cli.evaluate_suite import Asked, suite_command

    asked = Asked(
        suite, model, data, download, samples, tuple(k or ()), limit, temperature, top_p, max_tokens, seed,
        instruction, concurrent, key, dtype, min_tier, out, as_json,
    )  # fmt: skip
    raise typer.Exit(suite_command(asked))


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
