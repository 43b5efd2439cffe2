"""Commands on clusters: submit, which puts a job there, and the operator that runs it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from areal.cli.arguments import AsJson, JobFile, Kubeconfig, KubeContext, Namespace, Overrides, commands, job_name
from areal.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from areal.yaml_file.document import Document
    from rich.console import Console

    from areal_operator.submit.submit import SubmitRequest

LogFormat = Literal["json", "text"]

app = commands()


@app.command()
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
    kubeconfig: Kubeconfig = None,
    context: KubeContext = None,
    as_json: AsJson = False,
) -> None:
    """Check a job, upload the files that it names by relative paths, and apply it to a cluster.

    The recipe becomes a ConfigMap; model, tokenizer, datasets and hooks go to the job's volume. Absolute paths are in
    the images, pvc://claim/path is on a volume. Files that are there already are not sent again.
    """
    from rich.console import Console

    from areal_operator.submit.follow import follow
    from areal_operator.submit.submit import objects
    from areal_operator.submit.submit import submit as submit_objects

    request = checked_request(job, overrides or (), namespace, take_over)
    console = Console(stderr=True)
    if dry_run:
        from areal.spec.runtime import RuntimeSpec

        found = objects(replace(request, namespace=request.namespace or "default"), RuntimeSpec(), no_progress)
        sys.stdout.write(json.dumps(found.listed()) + "\n" if as_json else found.text())
        return
    from areal_operator.submit.cluster import connect

    cluster = connect(kubeconfig, context)
    request = replace(request, namespace=request.namespace or cluster.namespace)
    applied = submit_objects(request, cluster, _bars(console), lambda text: console.print(text, highlight=False))
    _next(applied, console)
    told: dict[str, Any] = {"name": applied["metadata"]["name"], "namespace": applied["metadata"]["namespace"]}
    code = ExitCode.DONE
    if wait:
        with console.status("waiting for the operator") as shown:
            code, sentence = follow(cluster, applied, shown.update)
        console.print(sentence, highlight=False, soft_wrap=True)
        told |= {"code": int(code), "message": sentence}
    if as_json:
        print(json.dumps(told))
    raise typer.Exit(int(code))


@app.command()
def pull(
    job: Annotated[str, typer.Argument(metavar="rljob/NAME|ADDRESS", help="A job on a cluster, or a run in a store.")],
    model: Annotated[bool, typer.Option("--model", help="Only the final model.")] = False,
    exports: Annotated[bool, typer.Option("--exports", help="Only the exported models.")] = False,
    recording: Annotated[bool, typer.Option("--recording", help="Only the recorded samples.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of the run, checkpoints too.")] = False,
    out: Annotated[Path | None, typer.Option(help="The run directory here; runs/NAME unless given.")] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = None,
) -> None:
    """Fetch a job's run from its volume, also when its pods are gone: what says how it went, and the final model. The
    result is a run directory like those of `areal run`. What is here is not fetched again.
    """
    from areal.object_store import ObjectStore, store_address
    from areal.record import archive

    from areal_operator.job_commands import find_job
    from areal_operator.submit import fetch

    chosen = [*["model"] * model, *["exports"] * exports, *["recording", "trajectories", "resolved.json"] * recording]
    parts = ["."] if everything else chosen or [*archive.SMALL, "journal", "logs", "model"]
    if address := store_address(job):
        target = out or Path("runs") / address.rstrip("/").rpartition("/")[2]
        came = archive.fetch(ObjectStore.connect(address), target, parts, print)
        print(f"{came} files came; {target} is the run here")
        return
    name = job_name(Path(job))
    if name is None:
        raise ConfigError(f"{job} is no job on a cluster", fix=f"write rljob/{Path(job).name}")
    cluster, found = find_job(name, namespace, kubeconfig, context, kept=True)
    target = out or Path("runs") / name
    came = fetch.pull(found, cluster, parts, target, print)
    print(f"{came} files came; {target} is the run here")


@app.command()
def jobs(
    kept: Annotated[bool, typer.Option("--kept", help="Volume claims with runs that outlive their jobs.")] = False,
    delete: Annotated[str | None, typer.Option(metavar="CLAIM", help="With --kept: delete one, with its run.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: KubeContext = None,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a namespace, or the volumes that outlive theirs (`storage.retain`); delete one of those."""
    from areal_operator.job_commands import job_row, kept_claims
    from areal_operator.submit.cluster import connect

    cluster = connect(kubeconfig, context)
    where = namespace or cluster.namespace
    if kept or delete:
        rows = kept_claims(cluster, where)
    else:
        rows = [job_row(job, time.time()) for job in cluster.all_of("RLJob", where)]
    if delete is None:
        table = [{key: key for key in row} for row in rows[:1]] + rows
        lines = ["  ".join(f"{row[key]:{max(len(each[key]) for each in table)}}" for key in row) for row in table]
        print(json.dumps(rows) if as_json else "\n".join(lines) or f"none in {where}")
        return
    going = next((row for row in rows if row["claim"] == delete and row["job"] == "gone"), None)
    if going is None:
        raise ConfigError(f"no claim {delete} in {where} outlived a job that is gone", fix="see `areal jobs --kept`")
    print(f"{delete} ({going['size']}) goes with what is left of run {going['run']}: model, exports, figures, samples")
    if yes or typer.confirm("delete it?", abort=True):
        cluster.delete({"kind": "PersistentVolumeClaim", "metadata": {"namespace": where, "name": delete}})


def fetched(
    name: str, namespace: str | None, kubeconfig: Path | None, context: str | None, parts: Sequence[str]
) -> Path:
    """A directory below runs/rljob with what says how the job went, and these parts of its run. What is there already
    isn't fetched again."""
    from areal_operator.job_commands import find_job
    from areal_operator.submit import fetch

    cluster, found = find_job(name, namespace, kubeconfig, context, kept=True)
    return fetch.pull_beside(found, cluster, parts, lambda text: print(text, file=sys.stderr))


def following(
    name: str, namespace: str | None, kubeconfig: Path | None, context: str | None, offsets: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """(role, line) of what the job's roles log behind these bytes of each log file, without an end."""
    from areal_operator.job_commands import find_job
    from areal_operator.submit import fetch

    cluster, found = find_job(name, namespace, kubeconfig, context, kept=True)
    return fetch.follow(found, cluster, offsets, lambda text: print(text, file=sys.stderr))


def checked_request(
    document: Document, overrides: Sequence[str], namespace: str | None, take_over: bool
) -> SubmitRequest:
    """The request for a job, with what its recipe implies and what it leaves to the plan. Refuses what `areal check`
    refuses. Its namespace is empty where neither the caller nor the job names one."""
    from areal.admit.verdict import admit
    from areal.spec.load import job_from

    from areal_operator.submit.submit import SubmitRequest

    job, base_dir = job_from(document, overrides), document.path.absolute().parent
    verdict = admit(job, base_dir)
    verdict.refuse(document.path)
    job = job_from(document, [*overrides, *verdict.planned]) if verdict.planned else job
    verifier = "custom" if verdict.defines_reward else None
    return SubmitRequest(job, base_dir, namespace or job.metadata.namespace or "", verifier, take_over, verdict.pods)


def _next(job: dict[str, Any], console: Console) -> None:
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    console.print(f"rljob/{name} is in {namespace}. Next:", highlight=False)
    for command in (
        f"kubectl -n {namespace} get rljob {name} -w",
        f"kubectl -n {namespace} wait --for=condition=Complete rljob/{name} --timeout=24h",
        f"kubectl -n {namespace} describe rljob {name}",
    ):
        console.print(f"  {command}", style="bold", highlight=False, soft_wrap=True)


def _bars(console: Console) -> Any:
    """Progress bars, on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    @contextmanager
    def progress(what: str, size: int) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task(what, total=size)
            yield lambda count: shown.advance(task, count)

    return progress


@contextmanager
def no_progress(what: str, size: int) -> Iterator[Callable[[int], None]]:
    """Progress of a piece of work, shown to nobody."""
    yield lambda count: None


@app.command()
def operator(
    namespace: Annotated[
        list[str] | None,
        typer.Option(envvar="AREAL_OPERATOR_NAMESPACES", help="Only jobs in this namespace; may be given again."),
    ] = None,
    default_runtime: Annotated[
        str, typer.Option(envvar="AREAL_OPERATOR_DEFAULT_RUNTIME", help="ClusterRLRuntime of jobs that name none.")
    ] = "",
    runtimes: Annotated[
        Path | None, typer.Option(help="Directory of ClusterRLRuntimes, a .json each, to apply while it leads.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="How to reach the cluster; $KUBECONFIG, else the pod's account.")
    ] = None,
    lease_namespace: Annotated[str, typer.Option(help="Where the leader's Lease is; the pod's namespace.")] = "",
    lease_name: Annotated[str, typer.Option(help="Name of the Lease.")] = "areal-operator",
    identity: Annotated[str, typer.Option(help="Of this process in the Lease; host and pid unless given.")] = "",
    bind: Annotated[str, typer.Option(help="Address of both ports below.")] = "0.0.0.0",
    metrics_port: Annotated[int, typer.Option(help="For /metrics; 0 picks one.")] = 8080,
    health_port: Annotated[int, typer.Option(help="For /healthz and /readyz; 0 picks one.")] = 8081,
    workers: Annotated[int, typer.Option(min=1, help="Jobs that are worked on at once.")] = 4,
    qps: Annotated[float, typer.Option(min=0.1, help="Requests a second to the API server, on average.")] = 50.0,
    burst: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 100,
    metrics_from: Annotated[
        list[str] | None,
        typer.Option(help="Label key=value of namespaces that may read jobs' metrics (again for more), or *."),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(envvar="AREAL_OPERATOR_LOG_FORMAT", help="How to log.")] = "json",
) -> None:
    """Keep what a cluster runs for each RLJob as its spec asks, until SIGTERM."""
    from areal_operator.operator.main import OperatorOptions, operate

    options = OperatorOptions(
        namespaces=tuple(namespace or ()),
        default_runtime=default_runtime,
        runtimes=runtimes,
        kubeconfig=kubeconfig,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        identity=identity,
        bind=bind,
        metrics_port=metrics_port,
        health_port=health_port,
        workers=workers,
        qps=qps,
        burst=burst,
        metrics_from=tuple(metrics_from or ()),
        json_logs=log_format == "json",
    )
    raise typer.Exit(operate(options))
