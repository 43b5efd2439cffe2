"""From a file and overrides to a job, or to all that is wrong with them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from areal.spec.document import Document, read_document
from areal.spec.job import RLJob
from areal.spec.overrides import apply_overrides
from areal.spec.problems import Problem, SpecError, describe, place

_FIX = "Correct the fields above; docs/rljob.md lists all fields with their units and defaults."


def load_job(path: Path, overrides: Sequence[str] = ()) -> RLJob:
    """Read a job file, apply `field=value` overrides, validate every field.

    Raises ConfigError for a file that can't be read, and SpecError (a ConfigError) that lists every unknown, missing or
    wrong field with its line, the nearest allowed name and what is allowed. Rules over several fields are `check`'s.
    """
    return job_from(read_document(path), overrides)


def job_from(document: Document, overrides: Sequence[str] = ()) -> RLJob:
    """The same for a document that was read before."""
    values = document.values
    origins, problems = apply_overrides(values, overrides)
    problems += [
        Problem(field, f"written twice, first on line {first}", f"{document.path}:{second}")
        for field, first, second in document.duplicates
    ]
    places = (
        {path: f"{document.path}:{line}" for path, line in document.lines.items()} | origins | {"": str(document.path)}
    )
    try:
        job = RLJob.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            field, holder = place(detail, RLJob, values)
            problems.append(Problem(field, describe(detail, holder), _where(field, places)))
        raise SpecError(str(document.path), problems, fix=_FIX) from None
    if problems:
        raise SpecError(str(document.path), problems, fix=_FIX)
    return job.placed(places)


def _where(field: str, places: Mapping[str, str]) -> str:
    """Where a field comes from; of a missing field, the block that should hold it."""
    while field not in places:
        field = field.rpartition(".")[0]
    return places[field]
