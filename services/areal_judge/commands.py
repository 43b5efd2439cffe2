"""Commands that judge: `areal eval`, a model on a public test set, and `areal reward`, programs in the sandbox."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from areal.cli.arguments import OneObject, commands
from areal.errors import ConfigError

TierName = Literal["T0", "T2", "T3", "T4"]
SuiteName = Literal["gsm8k", "math", "aime", "livecodebench", "humaneval", "mbpp"]

app = commands()
reward_app = typer.Typer(no_args_is_help=True, help="Judge programs in the sandbox.", rich_markup_mode=None)
app.add_typer(reward_app, name="reward")


@app.command("eval")
def eval_(
    named: Annotated[SuiteName | None, typer.Argument(metavar="SUITE", help="The same as --suite.")] = None,
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
    samples: Annotated[
        str,
        typer.Option(
            metavar="N|FILE.jsonl",
            help='Answers to each question, up to 1024; or HumanEval\'s, a line {"task_id": …, "completion": …} each.',
        ),
    ] = "1",
    canonical: Annotated[
        bool, typer.Option("--canonical", help="Judge HumanEval's reference solutions: all must pass.")
    ] = False,
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
    as_json: OneObject = False,
) -> None:
    """Ask a model the questions of a test set and grade its answers as in training.

    A run that goes on is measured by its newest published version. Nothing is downloaded without --download. The exit
    code is 0 when every answer was graded; with --canonical, when every one passed.
    """
    number, file = (int(samples), None) if samples.isdecimal() else (1, Path(samples))
    if not 1 <= number <= 1024:
        raise typer.BadParameter("--samples is 1 to 1024, or a file")
    if (wanted := suite or named) is None or (suite and named and suite != named):
        raise ConfigError("areal eval measures one test set", fix="name it: areal eval --suite gsm8k")
    from areal_judge.evaluate.suite_run import SuiteOptions, suite_command

    asked = SuiteOptions(
        wanted, model or "", data, download, number, tuple(k or ()), limit, temperature, top_p, max_tokens, seed,
        instruction, concurrent, key, dtype, min_tier, out, as_json, file, canonical,
    )  # fmt: skip
    raise typer.Exit(suite_command(asked))


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
    as_json: OneObject = False,
    min_tier: Annotated[TierName, typer.Option(help="Refuse a sandbox below this tier.")] = "T2",
    highest_tier: Annotated[TierName, typer.Option(help="Use no more than this tier offers.")] = "T4",
) -> None:
    """Judge a program by a suite, in this machine's sandbox, and show what every case did.

    The exit code is 0 only when the program passed, and 1 when it did not. Anything else is not its doing: 64 an
    argument or this machine's tier, 65 the suite, 75 the machine (try again).
    """
    from areal_judge.evaluate.one_program import TrialOptions, try_command

    asked = TrialOptions(solution, suite, format, language, completion, stop, total, as_json, min_tier, highest_tier)
    raise typer.Exit(try_command(asked))


@reward_app.command(
    epilog="Examples:\n\n  areal reward capabilities\n\n  areal reward capabilities --json",
    short_help="Show what this machine's sandbox promises and runs.",
)
def capabilities(as_json: OneObject = False) -> None:
    """Try what each tier forbids, and show the tier, what it stops and leaves, and the languages that run here."""
    from areal_judge.evaluate.local_judge import capabilities_command

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
    import asyncio

    from areal.observe import logs
    from areal.reward.verifiers.math import MathVerifier

    from areal_judge.judge.stack import StackSettings
    from areal_judge.sandbox.values import Tier
    from areal_judge.server.main import ServeOptions, Serving
    from areal_judge.server.main import serve as serve_judge

    logs.setup("reward", "reward-service", json=False)
    stack = StackSettings(min_tier=Tier[min_tier], highest_tier=Tier[highest_tier], slots=slots)

    def told(serving: Serving) -> None:
        print(f"judging with tier {serving.tier}: gRPC on {serving.grpc}, HTTP on {serving.http}")
        print(f"token in {token_file}" if token_file else f"token {serving.token}", flush=True)

    options = ServeOptions(host, port, http_port, metrics_port, token_file, stack, boxes)
    raise typer.Exit(asyncio.run(serve_judge(options, told, lambda waits: MathVerifier("answer", waits=waits))))
