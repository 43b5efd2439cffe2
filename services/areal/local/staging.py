"""From a job file to a run directory that is ready to start: everything checked first, nothing left when it fails."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal.admit.machine import preflight, sandbox_findings
from areal.admit.prepare import look_at_answers, restore_run
from areal.admit.resolve import resolve
from areal.admit.rows import Say, prepare_datasets, with_snapshots
from areal.admit.verdict import admit
from areal.errors import ConfigError
from areal.local.kept import is_occupied, refuse_cleaned, set_aside
from areal.plan import ResolvedJob, RunLayout, hub, remote, write_run
from areal.spec import RLJob, check, for_clusters_only, refuse
from areal.spec.load import job_from
from areal.spec.locality import remote_models, remote_rows
from areal.yaml_file.document import Document, read_document


@dataclass(frozen=True)
class StagingRequest:
    """What `areal run` was asked."""

    job_file: Path
    overrides: Sequence[str] = ()
    run_dir: Path | None = None
    resume: bool = False
    fresh: bool = False
    document: Document | None = None  # the file, when it was read already
    hosts: Sequence[str] = ()  # the command's words that say on which; none: all roles on this machine

    @property
    def base_dir(self) -> Path:
        return self.job_file.absolute().parent

    def directory(self, job: RLJob) -> Path:
        """Where the run lives."""
        return (self.run_dir or Path("runs") / job.metadata.name).absolute()


def load(request: StagingRequest, say: Say = lambda words: None) -> RLJob:
    """The job with its overrides; raises ConfigError for whatever `areal check` refuses.

    Models of the Hugging Face hub, and what is in an object store, are downloaded once nothing else speaks against the
    job; of a store anew when it changed, but for a run that is resumed.
    """
    if request.resume and request.fresh:
        raise ConfigError("--resume and --fresh exclude each other", fix="use --resume to go on, --fresh to start anew")
    document = request.document or read_document(request.job_file)
    job = job_from(document, request.overrides)
    refuse(for_clusters_only(job), request.job_file)
    run_dir = None if request.hosts else request.directory(job)
    verdict = admit(job, request.base_dir, run_dir)
    verdict.refuse(request.job_file)
    named = dict.fromkeys([*remote_models(job.spec).values(), *remote_rows(job.spec).values()])
    kept = request.resume
    if missing := [uri for uri in named if remote.cached(uri) is None or not (kept or hub.is_hub(uri))]:
        for uri in missing:
            remote.fetch(uri, say)
        verdict = admit(job, request.base_dir, run_dir)
        verdict.refuse(request.job_file)  # what only the model's files tell
    return job_from(document, [*request.overrides, *verdict.planned]) if verdict.planned else job


def stage(
    request: StagingRequest, job: RLJob, say: Say, take: Callable[[Path], None] = lambda run_dir: None
) -> ResolvedJob:
    """Make the run directory, or open the one to resume. On failure the disk is as it was before.

    `take` is told the directory when it is made anew, so that it is held like the one before.
    """
    run_dir = request.directory(job)
    if request.resume:
        return _reopen(request, job, run_dir, say)
    aside = set_aside(run_dir) if request.fresh else None
    existed, occupied = run_dir.exists(), is_occupied(run_dir)
    try:
        if aside is not None:
            take(run_dir)
        resolved = resolve(job, run_dir=run_dir, base_dir=request.base_dir)
        preflight(job, resolved.verifier, alone=not request.hosts)
        refuse(sandbox_findings(job), request.job_file)
        restore_run(resolved, say)
        if job.spec.storage.restore is None or not resolved.layout.dataset.exists():
            prepare_datasets(resolved, resolved.recipe_source, say)
        refuse(check(job, with_snapshots(resolved)), request.job_file)
        look_at_answers(resolved, say)
        write_run(resolved, recipe=resolved.recipe_source)
    except BaseException:
        if not occupied:
            for inner in run_dir.iterdir() if run_dir.is_dir() else ():
                shutil.rmtree(inner) if inner.is_dir() and not inner.is_symlink() else inner.unlink(missing_ok=True)
        if not existed:
            shutil.rmtree(run_dir, ignore_errors=True)
        if aside is not None:
            aside.rename(run_dir)
        raise
    if aside is not None:
        say(f"the earlier run is now {aside}")
    return resolved


def _reopen(request: StagingRequest, job: RLJob, run_dir: Path, say: Say) -> ResolvedJob:
    if not RunLayout(run_dir).resolved.exists():
        raise ConfigError(
            f"there is no run to resume in {run_dir}", fix="leave --resume out, or name it with --run-dir"
        )
    refuse_cleaned(run_dir)
    resolved = resolve(job, run_dir=run_dir, base_dir=request.base_dir, resume=True)
    recipe, kept = resolved.recipe_source, resolved.recipe_path
    if recipe is not None and kept is not None and kept.exists():
        if kept.read_bytes() != recipe.read_bytes():
            say(f"{recipe} has changed since this run was started; the run keeps its copy {kept}")
        recipe = None
    preflight(job, resolved.verifier, alone=not request.hosts)
    refuse(sandbox_findings(job), request.job_file)
    if not resolved.layout.dataset.exists():  # an existing snapshot is what the run's groups index: it stays
        prepare_datasets(resolved, kept if recipe is None else recipe, say)
    return write_run(resolved, recipe=recipe)
