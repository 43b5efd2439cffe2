"""A job's datasets as snapshots in its run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from areal.data import Snapshot, prepare, source_from_spec
from areal.data.rows import Column, Key
from areal.data.source import Source
from areal.plan import ResolvedJob
from areal.spec import RLJob
from areal.spec.locate import locate
from areal.spec.sources import DatasetSource
from areal.workflow.rows.forms import PROMPT_COLUMNS

Say = Callable[[str], None]

_READS_PROMPT = ("rlvr", "multi-turn")  # built-in workflows; a recipe's own reads what it likes


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
    required: Sequence[Column],
    progress: Callable[[int], None] | None = None,
) -> Snapshot:
    """One dataset as a snapshot."""
    return prepare(located(source, base_dir, recipe, split), target, required=required, progress=progress)


def located(source: DatasetSource, base_dir: Path, recipe: Path | None, split: str) -> Source:
    """The source that a job names; relative paths as everywhere in a job: below the current directory, or the job's."""
    if source.jsonl is not None and (found := locate(source.jsonl, base_dir)):
        source = source.model_copy(update={"jsonl": str(found)})
    return source_from_spec(source, base_dir=base_dir, recipe=recipe, split=split)


def required_columns(job: RLJob, verifier: str | None, needed: Iterable[str] = ()) -> list[Column]:
    """Columns that every row must have, as far as the job tells. `needed`: by the recipe's `reward`, by name."""
    columns: list[Column] = []
    if job.spec.supervised is not None:
        return columns  # each row may have its own form: `areal.workflow.examples` looks at them
    if job.spec.rollout.workflow in _READS_PROMPT:
        columns.append((*PROMPT_COLUMNS, "chosen"))
    if verifier in ("exact", "math"):
        columns.append(job.spec.reward.answer_field)
    if verifier == "custom":
        columns += [Key(name, "the recipe's reward") for name in sorted(needed)]
    return columns
