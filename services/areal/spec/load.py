"""From a file and overrides to a job, or to all that is wrong with them at once."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from areal.errors import ConfigError
from areal.spec.job import RLJob
from areal.spec.migration import old_fields
from areal.spec.overrides import apply_overrides
from areal.spec.problems import Problem, SpecError, refuse_invalid
from areal.yaml_file.document import Document, read_document
from areal.yaml_file.table import read_table

_FIX = "Correct the fields above; docs/rljob.md lists all fields with their units and defaults."
_REWRITES = "it moves the fields and keeps the comments"
_APPLY = "and apply that: docs/migration.md says how."
_NEMO = "a configuration of NeMo-RL"
_BY_HAND = "Write a job by hand: docs/migration.md has the fields beside those of NeMo-RL, prime-rl and SkyRL."
_SERVERS_METADATA = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName", "generation",
    "managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid",
)  # fmt: skip


def load_job(path: Path, overrides: Sequence[str] = ()) -> RLJob:
    """Read a job file, apply `field=value` overrides, validate every field.

    Raises ConfigError for a file that can't be read, and SpecError (a ConfigError) that lists every unknown, missing or
    wrong field with its line, the nearest allowed name and what is allowed. Rules over several fields are `check`'s.
    """
    return job_from(read_document(path), overrides)


def job_from(document: Document, overrides: Sequence[str] = ()) -> RLJob:
    """The same for a document that was read before. One that a cluster gave is read like its author's."""
    _refuse_foreign(document)
    values = deepcopy(_without_servers(document.values))  # overrides are written into it
    origins, problems = apply_overrides(values, overrides)
    problems += [
        Problem(field, f"written twice, first on line {first}", f"{document.path}:{second}")
        for field, first, second in document.duplicates
    ]
    problems += [
        Problem("", f"to be decided: {what}", f"{document.path}:{line}") for line, what in document.undecided.items()
    ]
    places = (
        {path: f"{document.path}:{line}" for path, line in document.lines.items()} | origins | {"": str(document.path)}
    )
    _refuse_old(values, places, str(document.path), f"Run `areal check --rewrite {document.path}`: {_REWRITES}")
    problems += _carry_template(values, Path(document.path).parent, places)
    job = refuse_invalid(RLJob, values, places, str(document.path), fix=_FIX, problems=problems)
    return job.placed(places).written(values)


def _carry_template(values: Mapping[str, Any], base: Path, places: Mapping[str, str]) -> list[Problem]:
    """Put a chat template's text where its file is named, so that the job has it wherever it runs."""
    spec = values.get("spec")
    model = spec.get("model") if isinstance(spec, Mapping) else None
    named = model.get("chatTemplate") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(named, str) or "{" in named or not named:
        return []
    try:
        model["chatTemplate"] = (base / named).read_text()
    except (OSError, ValueError) as error:
        where = "spec.model.chatTemplate"
        return [Problem(where, f"no chat template can be read from {named}: {error}", places.get(where, places[""]))]
    return []


def job_from_object(values: Mapping[str, Any]) -> RLJob:
    """The same for an object as the API server gives it: what the server adds, and the status, are left out.

    Raises SpecError (a ConfigError) that lists every wrong field.
    """
    cleaned = without_server_fields(values)
    metadata = cleaned.get("metadata") or {}
    name = "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key)) or "the object"
    places = {"": f"RLJob {name}"}
    _refuse_old(
        cleaned, places, f"RLJob {name}", f"Rewrite its file by `areal check --rewrite FILE` ({_REWRITES}) {_APPLY}"
    )
    return refuse_invalid(RLJob, cleaned, places, f"RLJob {name}", fix=_FIX)


def _refuse_foreign(document: Document) -> None:
    """Raise ConfigError for a configuration of another framework, with the command that makes a job of it."""
    keys = document.values.keys()
    if keys & {"apiVersion", "kind", "spec"}:
        return
    for what, known in read_table("areal.spec", "elsewhere.yaml")["configurations"].items():
        if any(keys >= set(each) for each in known):
            fix = _BY_HAND if what == _NEMO else f"Make a job of it: areal convert {document.path}"
            raise ConfigError(f"{document.path} is {what}, no job file", fix=fix)


def _refuse_old(values: Mapping[str, Any], places: Mapping[str, str], source: str, fix: str) -> None:
    """Raise SpecError for fields of an earlier release, each with its new place."""
    spec = values.get("spec")
    old = [(f"spec.{path}", said) for path, said in old_fields(spec)] if isinstance(spec, Mapping) else []
    if old:
        raise SpecError(source, [Problem(path, said, places.get(path, places[""])) for path, said in old], fix=fix)


def without_server_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """An object without its status, and of its metadata name and namespace only: the rest is others' to judge."""
    kept = {key: value for key, value in values.items() if key != "status"}
    metadata = values.get("metadata")
    if isinstance(metadata, Mapping):
        kept["metadata"] = {key: value for key, value in metadata.items() if key in ("name", "namespace")}
    return kept


def _without_servers(values: Mapping[str, Any]) -> dict[str, Any]:
    """A file's values without what an API server adds, for `kubectl get -o yaml`."""
    kept = {key: value for key, value in values.items() if key != "status"}
    metadata = values.get("metadata")
    if isinstance(metadata, Mapping):
        kept["metadata"] = {key: value for key, value in metadata.items() if key not in _SERVERS_METADATA}
    return kept
