"""Locality of a job's sources: its author's machine, an image, a cluster's volume, a hub.

Owns the list of fields that name files, and what a run on one machine refuses because only a cluster has it.
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import TypeGuard

from areal.spec.job import JobSpec, RLJob
from areal.spec.rules import Finding, Severity
from areal.spec.sources import STORES, on_volume

_FOLDERS = (  # of people's machines; no owners on the hub
    "models", "model", "checkpoints", "checkpoint", "ckpts", "ckpt", "weights", "runs", "data", "outputs", "output",
    "results", "saves",
)  # fmt: skip
_OF_RUN = re.compile(r"(?:^|/)runs/([^/]+)/(?:model|exports/)")
_HUB_NAME = re.compile(r"[A-Za-z0-9][-\w.]*/[A-Za-z0-9][-\w.]*")


class Locality(StrEnum):
    """Where a source is."""

    RELATIVE = "relative"  # on the machine where the job file is
    ABSOLUTE = "absolute"  # on the machine that runs the role: in its image, on a cluster
    VOLUME = "volume"  # pvc://claim/path
    HUB = "hub"  # hf://owner/name@revision
    STORE = "store"  # s3://bucket/name, gs://, az://


FETCHED = (Locality.HUB, Locality.STORE)


def locality_of(source: str) -> Locality:
    """What a path or address in a job file means."""
    if on_volume(source):
        return Locality.VOLUME
    if source.startswith("hf://"):
        return Locality.HUB
    if source.startswith(STORES):
        return Locality.STORE
    return Locality.ABSOLUTE if source.startswith("/") else Locality.RELATIVE


def in_store(source: str | None) -> TypeGuard[str]:
    """A source of an object store is one that starts with its scheme."""
    return source is not None and locality_of(source) is Locality.STORE


def named_files(spec: JobSpec) -> dict[str, str]:
    """The sources that a job names, by dotted field. A Hugging Face dataset may be a name on the hub: it isn't here."""
    teacher, scores = spec.teacher, spec.reward.model
    fields = {
        "spec.model.path": spec.model.path,
        "spec.model.uri": spec.model.uri,
        "spec.model.tokenizer": spec.model.tokenizer,
        "spec.recipe.file": spec.recipe.file if spec.recipe else None,
        **{f"{field}.jsonl": source.jsonl for field, source in spec.dataset.named.items()},
        "spec.trainer.hooks": spec.trainer.hooks,
        spec.teacher_field: teacher.path if teacher else None,
        "spec.reward.model.path": scores.path if scores else None,
    }
    return {field: source for field, source in fields.items() if source is not None}


def remote_models(spec: JobSpec) -> dict[str, str]:
    """The models of the Hugging Face hub, or of an object store, that a job names, by dotted field: start model,
    teacher, reward model."""
    fields = ("spec.model.uri", spec.teacher_field, "spec.reward.model.path")
    named = {field: source for field, source in named_files(spec).items() if field in fields}
    return {field: source for field, source in named.items() if locality_of(source) in FETCHED}


def remote_rows(spec: JobSpec) -> dict[str, str]:
    """The rows in an object store that a job names, by the dotted field of their source."""
    named = {field: source.path for field, source in spec.dataset.named.items()}
    return {field: path for field, path in named.items() if in_store(path)}


def hugging_face_paths(spec: JobSpec) -> dict[str, str]:
    """Of each Hugging Face dataset, the path: a name on the hub, or a folder or file."""
    return {
        f"{field}.huggingFace.path": source.hugging_face.path
        for field, source in spec.dataset.named.items()
        if source.hugging_face is not None
    }


def is_hub_name(path: str) -> bool:
    """Whether a path that isn't there looks like a name on the Hugging Face hub: owner/name."""
    owner = path.partition("/")[0]
    return bool(_HUB_NAME.fullmatch(path)) and owner not in _FOLDERS and not Path(owner).exists()


def download(name: str) -> str:
    """How to get a model of the hub, in words."""
    place = f"models/{name.rpartition('/')[2]}"
    return f"`hf download {name} --local-dir {place}`, and set model.path: {place}"


def where_models_come_from(path: str, field: str = "spec.model.path") -> str:
    """The fix for a model directory that isn't there: of another run, of the hub, a new one."""
    named = field.removeprefix("spec.")
    if (of_run := _OF_RUN.search(path)) is not None:
        return f"The run {of_run[1]} makes it: {_command_of(of_run[1])}; or correct {named}."
    if field != "spec.model.path":
        return f"Correct {named}."
    if is_hub_name(path):
        return f"Write `model: {{uri: hf://{path}}}` for a model of the Hugging Face hub, or get it: {download(path)}."
    return f"Correct model.path, or make a small model there: `areal init-model --out {path}`."


def where_rows_come_from(path: str, field: str) -> str:
    """The fix for a file of rows that isn't there: the script of the examples that writes it, where there is one."""
    named, folder = field.removeprefix("spec."), Path(path).parent
    script = Path("examples") / f"{folder.name}_data.py"
    return f"Make it: `python {script} {folder}`; or correct {named}." if script.is_file() else f"Correct {named}."


def _command_of(run: str) -> str:
    """The command that makes a run, by the job files here and among the examples."""
    name = re.compile(rf"^metadata:\s*(\{{\s*)?name:\s*{re.escape(run)}\b", re.MULTILINE)
    for file in [*Path().glob("*.yaml"), *Path("examples").glob("*.yaml")]:
        if name.search(file.read_text(errors="replace")):
            return f"`areal run {file}`"
    return f"`areal run` of the job with metadata.name {run}"


def for_clusters_only(job: RLJob) -> list[Finding]:
    """What `areal run` can't do, an error each."""
    found = [
        _finding(
            job,
            field,
            f"{source!r} is on a cluster's volume; a run on this machine reads files",
            f"Name a file or directory of this machine in {field.removeprefix('spec.')}, or run the job on a cluster.",
        )
        for field, source in {**named_files(job.spec), **hugging_face_paths(job.spec)}.items()
        if on_volume(source) and field != "spec.model.uri"
    ]
    if job.spec.model.uri is not None and locality_of(job.spec.model.uri) not in FETCHED:
        message = f"{job.spec.model.uri!r} is for clusters; a run on this machine reads a directory"
        found.append(
            _finding(job, "spec.model.uri", message, "Download the model and name its directory in model.path.")
        )
    if job.spec.recipe is not None and job.spec.recipe.config_map is not None:
        message = f"the recipe is in the ConfigMap {job.spec.recipe.config_map.name!r} of a cluster"
        found.append(_finding(job, "spec.recipe.configMap", message, "Name the recipe's path in recipe.file."))
    if job.spec.replay.backend == "External":
        message = "a Redis of yours is for runs on a cluster; a run on this machine starts its own"
        found.append(_finding(job, "spec.replay.backend", message, "Set replay.backend: ManagedRedis."))
    return found


def _finding(job: RLJob, field: str, message: str, fix: str) -> Finding:
    return Finding("for-clusters-only", Severity.ERROR, field, message, fix, job.where(field))
