"""From a job file to a run directory that is ready to start: everything checked first, nothing left when it fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal.data import Snapshot, prepare, source_from_spec
from areal.errors import ConfigError
from areal.local.claim import set_aside
from areal.local.facts import gather, with_snapshots
from areal.local.preflight import preflight
from areal.plan import ResolvedJob, RunLayout, resolve, write_run
from areal.plan.resolve import recipe_file
from areal.spec import RLJob, check, for_clusters_only, load_job, refuse
from areal.spec.locate import locate
from areal.spec.sources import DatasetSource
from areal.workflow.prompt import COLUMNS

Say = Callable[[str], None]

_READS_PROMPT = ("rlvr", "multi-turn")  # built-in workflows; a recipe's own reads what it likes


@dataclass(frozen=True)
class Request:
    """What `areal run` was asked."""

    job_file: Path
    overrides: Sequence[str] = ()
    run_dir: Path | None = None
    resume: bool = False
    fresh: bool = False

    @property
    def base_dir(self) -> Path:
        return self.job_file.absolute().parent

    def directory(self, job: RLJob) -> Path:
        """Where the run lives."""
        return (self.run_dir or Path("runs") / job.metadata.name).absolute()


def load(request: Request) -> RLJob:
    """The job with its overrides; raises ConfigError for whatever `areal check` refuses."""
    if request.resume and request.fresh:
        raise ConfigError("--resume and --fresh exclude each other", fix="use --resume to go on, --fresh to start anew")
    job = load_job(request.job_file, request.overrides)
    refuse(for_clusters_only(job), request.job_file)
    refuse(check(job, gather(job, request.base_dir), base_dir=request.base_dir), request.job_file)
    return job


def stage(request: Request, job: RLJob, say: Say) -> ResolvedJob:
    """Make the run directory, or open the one to resume. On failure the disk is as it was before."""
    run_dir = request.directory(job)
    if request.resume:
        return _reopen(request, job, run_dir, say)
    aside = set_aside(run_dir) if request.fresh else None
    existed = run_dir.exists()
    try:
        resolved = resolve(job, run_dir=run_dir, base_dir=request.base_dir)
        recipe = recipe_file(job, request.base_dir)
        preflight(resolved)
        prepare_datasets(resolved, request.base_dir, recipe, say)
        refuse(check(job, with_snapshots(resolved)), request.job_file)
        write_run(resolved, recipe=recipe)
    except BaseException:
        if not existed:
            shutil.rmtree(run_dir, ignore_errors=True)
        if aside is not None:
            aside.rename(run_dir)
        raise
    if aside is not None:
        say(f"the earlier run is now {aside}")
    return resolved


def _reopen(request: Request, job: RLJob, run_dir: Path, say: Say) -> ResolvedJob:
    if not RunLayout(run_dir).resolved.exists():
        raise ConfigError(
            f"there is no run to resume in {run_dir}", fix="leave --resume out, or name it with --run-dir"
        )
    resolved = resolve(job, run_dir=run_dir, base_dir=request.base_dir, resume=True)
    recipe = recipe_file(job, request.base_dir)
    kept = resolved.recipe_path
    if recipe is not None and kept is not None and kept.exists():
        if kept.read_bytes() != recipe.read_bytes():
            say(f"{recipe} has changed since this run was started; the run keeps its copy {kept}")
        recipe = None
    preflight(resolved)
    if not resolved.layout.dataset.exists():  # an existing snapshot is what the run's groups index: it stays
        prepare_datasets(resolved, request.base_dir, kept if recipe is None else recipe, say)
    return write_run(resolved, recipe=recipe)


def prepare_datasets(resolved: ResolvedJob, base_dir: Path, recipe: Path | None, say: Say) -> None:
    """Write the snapshots of both splits; ones that are up to date are kept."""
    required = required_columns(resolved.job, resolved.verifier)
    for split, source in (("train", resolved.dataset.train), ("evaluation", resolved.dataset.evaluation)):
        if source is not None:
            target = resolved.layout.dataset / split
            snapshot = prepare_split(source, target, split, base_dir, recipe, required)
            say(f"dataset {split}: {len(snapshot)} rows")


def prepare_split(
    source: DatasetSource,
    target: Path,
    split: str,
    base_dir: Path,
    recipe: Path | None,
    required: Sequence[str | tuple[str, ...]],
    progress: Callable[[int], None] | None = None,
) -> Snapshot:
    """One dataset as a snapshot; relative paths as everywhere in a job: below the current directory, or the job's."""
    if source.jsonl is not None and (found := locate(source.jsonl, base_dir)):
        source = source.model_copy(update={"jsonl": str(found)})
    made = source_from_spec(source, base_dir=base_dir, recipe=recipe, split=split)
    return prepare(made, target, required=required, progress=progress)


def required_columns(job: RLJob, verifier: str | None) -> list[str | tuple[str, ...]]:
    """Columns that every row must have, as far as the job tells."""
    columns: list[str | tuple[str, ...]] = []
    if job.spec.rollout.workflow in _READS_PROMPT:
        columns.append(COLUMNS)
    if verifier in ("exact", "math"):
        columns.append(job.spec.reward.answer_field)
    return columns
