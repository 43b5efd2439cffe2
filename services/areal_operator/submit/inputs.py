"""Input files of a job: which files of this machine it needs, and their names on its volume.

Owns the naming: each source gets a directory named by what is in it, so that the same files are never sent twice and
other files never stand under a name that a running job reads. Reads files to digest them; sends nothing.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.errors import ConfigError, DataError
from areal.spec import RLJob
from areal.spec.locality import Locality, hugging_face_paths, locality_of, named_files
from areal.spec.locate import is_pattern, locate, must_locate, split_pattern

INPUTS = "inputs"
_BLOCK_BYTES = 1 << 20
_DIGEST_CHARACTERS = 12
_PURPOSES = {  # field, or a block above it → the first part of its directory's name
    "spec.model.path": "model",
    "spec.model.tokenizer": "tokenizer",
    "spec.trainer.hooks": "hooks",
    "spec.training.teacher.path": "teacher",
    "spec.algorithm.teacher.path": "teacher",
    "spec.reward.model.path": "reward-model",
    "spec.dataset.train": "train",
    "spec.dataset.evaluation": "evaluation",
}


@dataclass(frozen=True)
class File:
    """One file: where it is here, and its path below its tree's directory."""

    source: Path
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Tree:
    """What one field names: a file or a folder. `directory` is on the volume; `place` is what the job names there."""

    field: str
    source: Path
    directory: str
    place: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


Read = Callable[[int], None]  # Told how many bytes more were digested


def local_sources(job: RLJob, base_dir: Path) -> dict[str, Path]:
    """Fields that name a file or folder by a relative path, and where it is. The recipe has a way of its own.

    An absolute path is in the role's image. A Hugging Face path that is nowhere here is a name on the hub.
    """
    found = {
        field: must_locate(
            source,
            base_dir,
            what="the file or folder",
            where=job.where(field),
            fix=f"Correct {field.removeprefix('spec.')}.",
        )
        for field, source in named_files(job.spec).items()
        if _purpose(field) and locality_of(source) is Locality.RELATIVE
    }
    for field, source in hugging_face_paths(job.spec).items():
        if locality_of(source) is Locality.RELATIVE and (place := locate(source, base_dir)):
            found[field] = place
    return found


def digest_all(sources: Mapping[str, Path], folder: str, read: Read = lambda count: None) -> list[Tree]:
    """The sources with the digests of their files. A source that two fields name is one directory.

    Args:
        folder: on the volume, where this job's inputs are.
    """
    known: dict[Path, Tree] = {}
    trees = []
    for field, source in sources.items():
        real = source.resolve()
        if real not in known:
            known[real] = _tree(field, source, folder, read)
        trees.append(Tree(field, source, known[real].directory, known[real].place, known[real].files))
    return trees


def total_size(sources: Mapping[str, Path]) -> int:
    """Bytes that `digest_all` will read."""
    return sum(path.stat().st_size for source in {*sources.values()} for path, _ in _files(source))


def on_cluster(
    job: RLJob,
    namespace: str,
    claim: str,
    trees: list[Tree],
    recipe: tuple[str, str] | None,
    verifier: str | None,
    pods: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The job as the cluster gets it: what its author gave, with files named on the volume.

    Args:
        recipe: ConfigMap and key of the recipe, when it was on this machine.
        verifier: to be set when the job names none.
        pods: planned memory of a role's pod, whole GiB in bytes: its request and limit where the job names neither.
    """
    values = job.as_written
    values["metadata"]["namespace"] = namespace
    spec: dict[str, Any] = values["spec"]
    for tree in trees:
        place = f"pvc://{claim}/{tree.place}"
        if tree.field == "spec.model.path":
            spec["model"].pop("path")
            spec["model"]["uri"] = place
        else:
            *above, last = tree.field.split(".")[1:]
            holder: Any = spec
            for name in above:
                holder = holder[int(name) if isinstance(holder, list) else name]
            holder[last] = place
    if recipe is not None:
        spec["recipe"] = {"configMap": {"name": recipe[0], "key": recipe[1]}}
    if verifier is not None and job.spec.reward.verifier is None:
        spec.setdefault("reward", {})["verifier"] = verifier
    for role, memory in (pods or {}).items():
        resources = spec.setdefault("podTemplate", {}).setdefault(role, {}).setdefault("resources", {})
        kinds = [resources.setdefault(kind, {}) for kind in ("requests", "limits")]
        if not any("memory" in amounts for amounts in kinds):
            for amounts in kinds:
                amounts["memory"] = f"{memory >> 30}Gi"
    return values


def _purpose(field: str) -> str | None:
    return next((purpose for above, purpose in _PURPOSES.items() if f"{field}.".startswith(f"{above}.")), None)


def _tree(field: str, source: Path, folder: str, read: Read) -> Tree:
    files = tuple(File(path, name, path.stat().st_size, _digest(path, read)) for path, name in _files(source))
    if not files:
        raise ConfigError(
            f"{source}, which {field.removeprefix('spec.')} names, holds no files",
            fix="Name a folder with files in it.",
        )
    lines = "".join(f"{file.sha256} {file.size} {file.path}\n" for file in files)
    digest = hashlib.sha256(lines.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    directory = f"{folder}/{_purpose(field)}-{digest}"
    place = directory
    if is_pattern(str(source)):
        place = f"{directory}/{split_pattern(source)[1]}"
    elif source.is_file():
        place = f"{directory}/{files[0].path}"
    return Tree(field, source, directory, place, files)


def _files(source: Path) -> Iterator[tuple[Path, str]]:
    """Every file of a source with its path there, sorted. Links are followed, hidden files and folders left out."""
    if source.is_file():
        yield source, source.name.lstrip(".") or "file"
        return
    if is_pattern(str(source)):
        above, rest = split_pattern(source)
        yield from ((file, file.relative_to(above).as_posix()) for file in sorted(above.glob(rest)) if file.is_file())
        return
    entered: set[Path] = set()
    for folder, inner, names in os.walk(source, followlinks=True):
        here = Path(folder)
        if here.resolve() in entered:  # a link to a folder above
            inner.clear()
            continue
        entered.add(here.resolve())
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and (here / name).is_file():
                yield here / name, (here / name).relative_to(source).as_posix()


def _digest(path: Path, read: Read) -> str:
    sha256 = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                sha256.update(block)
                read(len(block))
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}", fix="Check the file's permissions.") from error
    return sha256.hexdigest()
