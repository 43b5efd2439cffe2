"""Dataset sources as plain values, one class a kind.

A source names data and reads nothing. `adapters.read_rows` turns one into rows; `fingerprint` tells, where that is
possible without reading rows, whether they are the same as last time.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from areal.errors import ConfigError, DataError
from areal.spec.locate import is_pattern
from areal.spec.sources import DatasetSource, TrainSource

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class JsonlSource:
    """A file with one JSON object a line; or a JSON array, CSV or parquet, by its name; also packed (.gz, .zst)."""

    path: Path


@dataclass(frozen=True)
class HuggingFaceSource:
    """A Hugging Face dataset: a hub name, a folder that `save_to_disk` wrote, a data file, or a pattern of such files.

    `columns` renames: `{"prompt": "question"}` makes the column `prompt` from `question`; a dotted path reaches into
    nested columns.
    """

    path: str
    name: str | None = None
    split: str = "train"
    revision: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReasoningGymSource:
    """`size` generated items of one reasoning-gym task."""

    task: str
    size: int
    seed: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeSource:
    """The rows that `dataset(split)` of a recipe yields."""

    path: Path
    split: str


@dataclass(frozen=True)
class MixedSource:
    """Several sources with their weights."""

    parts: "tuple[Source, ...]"
    weights: tuple[float, ...]


Source = JsonlSource | HuggingFaceSource | ReasoningGymSource | RecipeSource | MixedSource


def parts_of(source: Source) -> tuple[tuple[Source, float], ...]:
    """The sources that one is made of, each with its weight: itself, or several."""
    return (
        tuple(zip(source.parts, source.weights, strict=True)) if isinstance(source, MixedSource) else ((source, 1.0),)
    )


def describe(source: Source) -> str:
    """The source in one line, for messages."""
    match source:
        case JsonlSource(path):
            return str(path)
        case HuggingFaceSource(path=path, name=name, split=split):
            return f"Hugging Face dataset {path}{f' ({name})' if name else ''}, split {split}"
        case ReasoningGymSource(task=task, size=size, seed=seed):
            return f"reasoning-gym task {task} (size {size}, seed {seed})"
        case RecipeSource(path, split):
            return f"dataset({split!r}) of {path}"
        case MixedSource(parts):
            return " + ".join(describe(part) for part in parts)


def fingerprint(source: Source) -> str | None:
    """A digest that changes whenever the rows may have changed; None when only reading the rows can tell.

    A recipe may read anything, and a Hugging Face dataset may move under its name: their rows are always read again.
    """
    match source:
        case JsonlSource(path):
            return "jsonl:" + _file_digest(path)
        case ReasoningGymSource(task, size, seed, config):
            described = [task, size, seed, dict(config), _package_version("reasoning-gym")]
            text = orjson.dumps(described, option=orjson.OPT_SORT_KEYS, default=repr)
            return "reasoning-gym:" + hashlib.sha256(text).hexdigest()
        case MixedSource(parts, weights):
            marks = [fingerprint(part) for part in parts]
            return None if None in marks else f"mixed {weights}: {' '.join(map(str, marks))}"
        case HuggingFaceSource() | RecipeSource():
            return None


def source_from_spec(spec: DatasetSource, *, base_dir: Path, recipe: Path | None, split: str) -> Source:
    """The source that one entry of the job's `dataset` names.

    Args:
        spec: `dataset.train` or `dataset.evaluation`; gives exactly one of its kinds.
        base_dir: what relative paths are relative to.
        recipe: the job's recipe file, for `recipe: …`.
        split: what a recipe is asked for when the job doesn't say: "train" or "evaluation".
    """
    if len(spec.given) != 1:
        raise ConfigError(
            f"a dataset gives {' and '.join(spec.given) or 'no source'}",
            fix="give exactly one of jsonl, huggingFace, reasoningGym and recipe",
        )
    if isinstance(spec, TrainSource) and spec.sources:
        parts = [source_from_spec(part, base_dir=base_dir, recipe=recipe, split=split) for part in spec.sources]
        return MixedSource(tuple(parts), tuple(part.weight for part in spec.sources))
    if spec.jsonl is not None:
        return JsonlSource(base_dir / spec.jsonl)
    if (hub := spec.hugging_face) is not None:
        return HuggingFaceSource(_local_or_hub(hub.path, base_dir), hub.name, hub.split, hub.revision, hub.columns)
    if (gym := spec.reasoning_gym) is not None:
        return ReasoningGymSource(gym.task, gym.size, gym.seed, gym.config)
    assert spec.recipe is not None
    if recipe is None:
        raise ConfigError("a dataset is the recipe's, but the job has none", fix="set recipe.file in the job")
    return RecipeSource(recipe, spec.recipe.split or split)


def _local_or_hub(path: str, base_dir: Path) -> str:
    """A path that exists beside the job is local; anything else is a name on the hub."""
    local = base_dir / path
    return str(local) if local.exists() or is_pattern(path) else path


def _package_version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except FileNotFoundError:
        raise DataError(
            f"no such dataset file: {path}", fix="check dataset.*.jsonl in the job, or make the file"
        ) from None
    except OSError as error:
        raise DataError(f"cannot read the dataset file {path}: {error.strerror}", fix="check the path") from None
    return digest.hexdigest()
