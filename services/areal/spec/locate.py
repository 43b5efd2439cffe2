"""Path lookup for a job file's paths.

A relative path is looked for below the current directory first, then below the job file's directory, so that a job runs
from a checkout's root and from beside its file alike.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from areal.errors import ConfigError, DataError
from areal.spec.job import RLJob


def candidates(path: str, base_dir: Path) -> list[Path]:
    """The places where `path` is looked for, in order, without repetition."""
    wanted = Path(path).expanduser()
    places = [wanted] if wanted.is_absolute() else [Path.cwd() / wanted, base_dir.absolute() / wanted]
    return list(dict.fromkeys(places))


def is_pattern(path: str) -> bool:
    """Whether a path stands for several files: `shards/*.parquet`."""
    return any(character in path for character in "*?[")


def is_data_name(path: str) -> bool:
    """Whether a Hugging Face path is a data file's, by its end: no dataset on the hub is named so."""
    return path.endswith((".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".arrow", ".txt", ".gz", ".zst"))


def split_pattern(path: str | Path) -> tuple[Path, str]:
    """The folder above the first part of a path that stands for several names, and the rest."""
    parts = Path(path).parts
    first = next((place for place, part in enumerate(parts) if is_pattern(part)), len(parts) - 1)
    return Path(*parts[:first]), "/".join(parts[first:])


def locate(path: str, base_dir: Path) -> Path | None:
    """The first place where `path` exists, or of a pattern where a file fits it, absolute; None when there is none."""
    places = candidates(path, base_dir)
    there = (place for place in places if place.exists() or (is_pattern(path) and _fits(place)))
    return next(there, None)


def _fits(pattern: Path) -> bool:
    folder, rest = split_pattern(pattern)
    return next(folder.glob(rest), None) is not None


def must_locate(path: str, base_dir: Path, *, what: str, where: str = "", fix: str) -> Path:
    """As `locate`; raises ConfigError that names every place tried. `where` is the file and line of the field."""
    found = locate(path, base_dir)
    if found is None:
        tried = " and ".join(str(place) for place in candidates(path, base_dir))
        raise ConfigError(f"{where + ': ' if where else ''}{what} {path!r} is not there: tried {tried}", fix=fix)
    return found


def refuse_pipes(*paths: Path) -> None:
    """Raise DataError for the first that is there and is neither file nor directory: its reader may wait for ever."""
    for path in paths:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise DataError(f"{path} is no regular file", fix="Put a file there, or correct the path.")


# ---- Fields of jobs by dotted path, and those in which several jobs differ


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
