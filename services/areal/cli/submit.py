"""`areal submit`: checks a job here, puts it on a cluster with its files, and says what to look at next."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from areal.errors import ExitCode
from areal.spec import RLJob, check, refuse
from areal.spec.load import job_from
from areal.stage.facts import sources_of
from areal.stage.look import look
from areal.yaml_file.document import Document


@dataclass(frozen=True)
class Options:
    """What was asked beside the job."""

    namespace: str | None
    kubeconfig: Path | None
    context: str | None
    dry_run: bool
    wait: bool
    take_over: bool


def submit_command(document: Document, overrides: Sequence[str], options: Options) -> int:
    """Check, then submit or print; the exit code is the job's with --wait."""
    from areal_operator.submit.follow import follow
    from areal_operator.submit.submit import SubmitRequest, objects, submit

    job, job_file = job_from(document, overrides), document.path
    base_dir = job_file.absolute().parent
    verifier = _check(job, job_file, base_dir)
    console = Console(stderr=True)
    if options.dry_run:
        from areal.spec.runtime import RuntimeSpec

        request = SubmitRequest(job, base_dir, options.namespace or job.metadata.namespace or "default", verifier)
        sys.stdout.write(objects(request, RuntimeSpec(), _quiet).text())
        return int(ExitCode.DONE)
    from areal_operator.submit.cluster import connect

    cluster = connect(options.kubeconfig, options.context)
    request = SubmitRequest(
        job, base_dir, options.namespace or job.metadata.namespace or cluster.namespace, verifier, options.take_over
    )
    made = submit(request, cluster, _bars(console), lambda text: console.print(text, highlight=False))
    _next(made, console)
    if not options.wait:
        return int(ExitCode.DONE)
    with console.status("waiting for the operator") as shown:
        code, sentence = follow(cluster, made, shown.update)
    console.print(sentence, highlight=False, soft_wrap=True)
    return int(code)


def _check(job: RLJob, job_file: Path, base_dir: Path) -> str | None:
    """Refuse what `areal check` refuses; the verifier that the recipe implies, if it does."""
    looked = look(job, sources_of(job, base_dir), base_dir)
    for _, error in looked.faults:
        raise error
    refuse(check(job, looked.facts, base_dir=base_dir), job_file)
    return "custom" if looked.facts.recipe_defines_reward and job.spec.reward.verifier is None else None


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

    @contextmanager
    def progress(what: str, size: int) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console, transient=True) as shown:
            task = shown.add_task(what, total=size)
            yield lambda count: shown.advance(task, count)

    return progress


@contextmanager
def _quiet(what: str, size: int) -> Iterator[Callable[[int], None]]:
    yield lambda count: None
