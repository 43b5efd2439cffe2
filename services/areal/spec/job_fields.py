"""Fields of jobs by dotted path, and those in which several jobs differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from areal.spec.job import RLJob

UNSET = "–"  # Stands for a field that a job leaves to its default of another kind, or a figure that a run doesn't have


def spec_fields(job: RLJob) -> dict[str, Any]:
    """Every field of a job's spec by dotted path, with every default in place."""
    return dict(leaves(job.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]))


def differing_fields(jobs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Dotted path of each field in which jobs differ → its value in each; `UNSET` where it has none."""
    names = sorted({name for fields in jobs for name in fields})
    rows = {name: [fields.get(name, UNSET) for fields in jobs] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of nested mappings by its dotted path; an empty mapping inside is a leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value
