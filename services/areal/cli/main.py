"""The `areal` command: parses, calls, and turns errors into one message and an exit code.

Importing this module imports typer and nothing of ours but the errors and other parsers; each command imports its room
when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from areal import __version__
from areal.cli.evaluate import eval_app
from areal.cli.export import export
from areal.cli.jobs_page import jobs_page
from areal.cli.operator import operator
from areal.cli.reward import reward_app
from areal.distribution import refuse_upstream
from areal.errors import ArealError, ConfigError, ExitCode

HELP = """Asynchronous reinforcement learning for language models: one job file, anywhere.

A first run:  areal run examples/quickstart.yaml
"""

_USAGE = 2  # of typer's parser, for a command line that it can't read

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(eval_app, name="eval")
app.add_typer(reward_app, name="reward")


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
_JOB = "rljob/"
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]


@app.command(
    epilog="Examples:\n\n  areal run examples/quickstart.yaml\n\n  areal run job.yaml algorithm.maxSteps=20 --run-dir "
    "runs/short\n\n  areal run job.yaml --resume\n\n  areal run job.yaml --sweep algorithm.name=GRPO,PPO --seeds 3"
)
def run(
    job: JobFile,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run lives; runs/<name> unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the directory.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; an earlier run there is moved aside.")] = False,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=A,B,C", help="Run a variant for each value (again for combinations) and compare."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, max=100, help="Run each variant with so many seeds.")] = 0,
) -> None:
    """Run a job on this machine, and watch it."""
    from areal.local.console import lossy_console
    from areal.local.run import run_job
    from areal.local.staging import StagingRequest

    request = StagingRequest(job.path, overrides or (), run_dir, resume, fresh, document=job)
    if sweep or seeds:
        from areal.local.sweep import run_sweep, variants

        raise typer.Exit(run_sweep(request, variants(sweep or (), range(seeds)), lossy_console()))
    raise typer.Exit(run_job(request, lossy_console()))


@app.command(
    epilog="Examples:\n\n  areal check job.yaml\n\n  areal check job.yaml algorithm.batchSize=512 --json",
    short_help="Validate a job file and explain it.",
)
def check(
    job: JobFile,
    overrides: Overrides = None,
    as_json: AsJson = False,
    model_config: Annotated[
        Path | None, typer.Option(help="A config.json to plan memory by, where the model isn't on this machine.")
    ] = None,
    graph: Annotated[
        str | None, typer.Option(metavar="FILE.svg|-", help="Draw the stages of a step, as text (-) or into a file.")
    ] = None,
) -> None:
    """Validate a job file and explain what it means, without running anything."""
    if graph is not None:
        from areal.cli.graph import graph_command

        raise typer.Exit(graph_command(job, overrides or (), graph))
    from areal.cli.check import check_command

    raise typer.Exit(check_command(job, overrides or (), as_json=as_json, model_config=model_config))


@app.command(
    epilog="Example:\n\n  areal prepare job.yaml --out data/prepared",
    short_help="Write the snapshots of a job's datasets.",
)
def prepare(
    job: JobFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write; into runs/<name>, for its run, unless given.")
    ] = None,
) -> None:
    """Write the indexed, digested snapshots of a job's datasets, and say what is in them."""
    from areal.cli.data import prepare_command

    prepare_command(job, overrides or (), out)


@app.command(
    "init-model",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog="Example:\n\n  areal init-model --out models/new-1m",
    short_help="Make a small model with random weights.",
)
def init_model(context: typer.Context) -> None:
    """Make a model of a million random weights, and a tokenizer of characters, for the quickstart and for tests."""
    from areal.cli.models import init_model_command

    raise typer.Exit(init_model_command(context.args))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog="Examples:\n\n  areal serve runs/digits\n\n  areal serve models/Qwen3-0.6B --port 8000 --key secret",
    short_help="Serve a model by OpenAI's and Anthropic's APIs.",
)
def serve(context: typer.Context) -> None:
    """Serve a model directory, a finished run's model, or one of the hub, for development and evaluation."""
    from areal.cli.models import serve_command

    serve_command(context.args)


@app.command(
    epilog="Examples:\n\n  areal chat runs/digits\n\n  areal chat http://localhost:8000 --key secret --temperature 0",
    short_help="Talk to a model in the terminal.",
)
def chat(
    model: Annotated[str, typer.Argument(metavar="MODEL|RUN|URL", help="What `areal serve` takes, or its address.")],
    key: Annotated[str, typer.Option(help="API key of a server.", envvar="AREAL_SERVE_KEY")] = "",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(help="Of one answer.")] = 256,
    system: Annotated[str, typer.Option(help="What the model is told first.")] = "",
) -> None:
    """Talk to a model directory, a finished run's model or a server; the end of the input (Ctrl-D) ends it."""
    from areal.cli.chat import chat_command

    raise typer.Exit(chat_command(model, key=key, temperature=temperature, max_tokens=max_tokens, system=system))


@app.command(
    epilog="Examples:\n\n  areal status runs/digits\n\n  areal status runs/digits --json\n\n"
    "  areal status rljob/digits -n team",
    short_help="Show what every role of a run waits for.",
)
def status(
    run: RunOrJob,
    as_json: AsJson = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = None,
) -> None:
    """Ask every role of a run what it does, what it waits for, since when; of a job on a cluster, show its status."""
    if (name := _job_name(run)) is not None:
        from areal.cli.job_status import job_status_command

        job_status_command(name, namespace, kubeconfig, context, as_json=as_json)
    else:
        from areal.cli.runs import status_command

        status_command(run, as_json=as_json)


def _job_name(run: Path) -> str | None:
    """The NAME of rljob/NAME; None for a run directory."""
    return str(run).removeprefix(_JOB) if str(run).startswith(_JOB) else None


@app.command(
    epilog="Examples:\n\n  areal logs runs/digits --since 10m\n\n  areal logs runs/digits --role trainer -f",
    short_help="Show what all roles of a run logged.",
)
def logs(
    run: RunDir,
    role: Annotated[list[str] | None, typer.Option(help="Only this role's; may be given again.")] = None,
    since: Annotated[str | None, typer.Option(help="Only from so long ago on: 90s, 10m, 2h, 1d.")] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=0, help="At most so many, the newest.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is logged next.")] = False,
) -> None:
    """Print the logs of all roles as one stream in the order of time, of a run that goes on or has ended."""
    from areal.cli.logs import logs_command

    logs_command(run, role or (), since, lines, follow=follow)


@app.command(
    epilog="Example:\n\n  areal compare runs/eta2 runs/eta4",
    short_help="Set runs beside each other.",
)
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Two run directories or more.")],
    as_json: AsJson = False,
) -> None:
    """Set runs beside each other: the fields in which their jobs differ, and what came of it."""
    from areal.cli.compare import compare_command

    compare_command(runs, as_json=as_json)


@app.command(
    epilog="Examples:\n\n  areal why runs/digits\n\n  areal why runs/digits --bundle digits.zip\n\n"
    "  areal why runs/digits --slow\n\n  areal why rljob/digits -n team",
    short_help="Say in one sentence why a run waits.",
)
def why(
    run: RunOrJob,
    as_json: AsJson = False,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write what a report of a hang needs into this zip: versions, waits, stacks, logs."),
    ] = None,
    slow: Annotated[
        bool, typer.Option("--slow", help="Show where the time of the newest steps went, and what changes would bring.")
    ] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = None,
) -> None:
    """Say in one sentence what a run waits for: which role, since when, and what to do. Also of a run that died, and
    of a job on a cluster.
    """
    if (name := _job_name(run)) is not None:
        from areal.cli.job_why import job_why_command

        if bundle is not None or slow:
            raise ConfigError("--bundle and --slow read a run directory", fix="copy the run's volume, and name it")
        job_why_command(name, namespace, kubeconfig, context, as_json=as_json)
    else:
        from areal.cli.runs import slow_command, why_command

        if slow:
            slow_command(run, as_json=as_json)
        else:
            why_command(run, as_json=as_json, bundle=bundle)


@app.command(
    epilog="Examples:\n\n  areal view\n\n  areal view runs/digits --port 8000\n\n  areal view rljob/digits -n team",
    short_help="Show runs as a web page on this machine.",
)
def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS]...",
            help="Runs, or directories of runs; runs/ unless given. Or rljob/NAME, one job on a cluster.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen, on loopback; 0 picks one.")] = 0,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = None,
) -> None:
    """Show runs, live ones and finished ones, as a web page: steps, groups, samples, tokens. Ends with Ctrl-C."""
    if runs and len(runs) == 1 and (name := _job_name(runs[0])) is not None:
        from areal.cli.job_view import job_view_command

        job_view_command(name, namespace, kubeconfig, context, port)
        return
    from areal.cli.runs import view_command

    view_command(runs or [Path("runs")], port)


@app.command(
    epilog="Examples:\n\n  areal audit runs/digits\n\n  areal audit runs/digits --json\n\n"
    "  areal run job.yaml recording.tokenAudit=true --run-dir runs/audited && areal audit runs/audited --tokens",
    short_help="Prove that every group was used exactly once.",
)
def audit(
    run: RunDir,
    as_json: AsJson = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Compare every trained token with what the servers sampled instead.")
    ] = False,
) -> None:
    """Prove from a run's logs that every prompt group was used exactly once; with --tokens, that every trained token
    is the one that was sampled.
    """
    from areal.cli.runs import audit_command, audit_tokens_command

    command = audit_tokens_command if tokens else audit_command
    raise typer.Exit(command(run, as_json=as_json))


@app.command(epilog="Example:\n\n  areal report runs/digits", short_help="Write report.html of a run again.")
def report(run: RunDir) -> None:
    """Write report.html (and report.png) of a run again, also while it goes on."""
    from areal.cli.runs import report_command

    report_command(run)


app.command(
    epilog="Examples:\n\n  areal export runs/digits --outcome complete > samples.jsonl\n\n"
    "  areal export runs/digits --as parquet --high 0 --out wrong.parquet\n\n"
    "  WANDB_API_KEY=… areal export runs/digits --to wandb --project math --follow",
    short_help="Write recorded samples as a file, or send figures to W&B, MLflow, Trackio.",
)(export)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    epilog="Example:\n\n  areal sim --schedules 1000",
    short_help="Run seeded schedules of faults.",
)
def sim(context: typer.Context) -> None:
    """Run the cores of the system under seeded schedules of faults, in virtual time."""
    from areal.cli.models import module_command

    raise typer.Exit(module_command("areal.sim.main", context.args))


@app.command(
    epilog="Examples:\n\n  areal submit job.yaml\n\n  areal submit job.yaml -n team-a algorithm.maxSteps=20 --wait\n\n"
    "  areal submit job.yaml --dry-run > manifests.yaml",
    short_help="Put a job on a Kubernetes cluster, with its files.",
)
def submit(
    job: JobFile,
    overrides: Overrides = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Where to; the job's, else the context's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the manifests as YAML and touch nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job until it ends.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Own fields that kubectl or another tool set to other values.")
    ] = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="How to reach the cluster; $KUBECONFIG unless given.")] = None,
    context: Annotated[
        str | None, typer.Option(help="Context of the kubeconfig; its current one unless given.")
    ] = None,
) -> None:
    """Check a job, upload the files that it names by relative paths, and apply it to a cluster.

    The recipe becomes a ConfigMap; model, tokenizer, datasets and hooks go to the job's volume. Absolute paths are in
    the images, pvc://claim/path is on a volume. Files that are there already are not sent again.
    """
    from areal.cli.submit import Options, submit_command

    options = Options(namespace, kubeconfig, context, dry_run, wait, take_over)
    raise typer.Exit(submit_command(job, overrides or (), options))


app.command(
    epilog="Example, outside of a cluster:\n\n  areal operator --kubeconfig ~/.kube/config --lease-namespace default "
    "--bind 127.0.0.1",
    short_help="Run RLJobs on Kubernetes (the chart starts this).",
)(operator)
app.command(
    name="jobs-page",
    epilog="Example, in a pod:\n\n  areal jobs-page --bind 0.0.0.0 --namespace team-a",
    short_help="Show the jobs of a cluster as a web page.",
)(jobs_page)


@app.command(
    "set",
    epilog="Examples:\n\n  areal set runs/digits algorithm.maxSteps=200\n\n"
    "  areal set rljob/digits -n team algorithm.maxStaleness=4 generation.replicas=6",
    short_help="Change a run that goes on.",
)
def set_fields(
    run: RunOrJob,
    changes: Annotated[list[str], typer.Argument(metavar="FIELD=VALUE...", help="Live fields and their new values.")],
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = None,
) -> None:
    """Change live fields of a run or of a job on a cluster while it goes on; prints what is in force then."""
    from areal.cli.set_fields import set_command, set_job_command

    if (name := _job_name(run)) is not None:
        set_job_command(name, changes, namespace, kubeconfig, context)
    else:
        set_command(run, changes)


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
