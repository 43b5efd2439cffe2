"""Job of Python objects as files: a dict, functions, rows become a job file, a recipe, JSON lines.

Owns the form of a dict that is a job, and the directory of these files, from which the same job runs in a shell.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from areal.errors import ConfigError, DataError
from areal.files import write_atomically
from areal.spec.overrides import apply_overrides
from areal.yaml_file.document import Document, read_document

from areal_view.source import recipe_text

Job = str | os.PathLike[str] | Mapping[str, Any]
Overrides = str | Sequence[str] | Mapping[str, Any]
Rows = Iterable[Mapping[str, Any]]
_HOOKS = ("compute_advantages", "compute_loss")
_WHOLE = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob"}


@dataclass(frozen=True)
class JobParts:
    """What Python gives beside the job. None: the job's own."""

    reward: Callable[..., Any] | None = None
    workflow: str | type | None = None
    hooks: str | os.PathLike[str] | Sequence[Callable[..., Any]] | None = None
    rows: Rows | None = None
    held_out: Rows | None = None


@dataclass(frozen=True)
class JobFiles:
    """A job file, and what is overridden in it."""

    document: Document
    overrides: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job, overrides: Overrides) -> "JobFiles":
        """Nothing is written yet. Raises ConfigError for a file that can't be read."""
        return cls(_whole(job) if isinstance(job, Mapping) else read_document(Path(job)), _texts(overrides))

    @property
    def name(self) -> str:
        """The job's; empty where it has none, which its loading refuses."""
        values = deepcopy(self.document.values)
        apply_overrides(values, self.overrides)
        metadata = values.get("metadata")
        return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""

    def written(self, parts: JobParts, place: Path) -> "JobFiles":
        """The job with its parts, as files in `place`, which is made where it is needed, for its owner alone.

        Raises ConfigError and DataError that name what can't be written.
        """
        texts, fields = _recipe(parts), {}
        if isinstance(parts.workflow, str):
            fields["rollout.workflow"] = parts.workflow
        elif parts.workflow is not None:
            fields["rollout.workflow"] = str(vars(parts.workflow).get("name") or parts.workflow.__name__)
        if isinstance(parts.hooks, str | os.PathLike):
            fields["trainer.hooks"] = _near(Path(parts.hooks).absolute())
        for name, field in (("recipe.py", "recipe.file"), ("hooks.py", "trainer.hooks")):
            if name in texts:
                self._refuse_second(field, name)
                fields[field] = _near(place / name)
        for name, rows in (("train", parts.rows), ("evaluation", parts.held_out)):
            if rows is not None:
                self._refuse_second(f"dataset.{name}", "rows")
                texts[f"{name}.jsonl"] = _lines(rows, "rows" if name == "train" else "held_out")
                fields[f"dataset.{name}.jsonl"] = _near(place / f"{name}.jsonl")
        document = self.document
        if not document.path.name:  # a dict's
            texts["job.yaml"] = _text(document.values)
            document = Document(place / "job.yaml", document.values)
        if texts:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomically(place / name, text, durable=False)
        return JobFiles(document, (*self.overrides, *_texts(fields)))

    def _refuse_second(self, field: str, what: str) -> None:
        inner: Any = self.document.values.get("spec")
        for key in field.split("."):
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if inner is not None:
            raise ConfigError(f"the job has {field}, and Python gives {what} too", fix="leave one of the two out")


def _whole(job: Mapping[str, Any]) -> Document:
    """A dict without `spec` is the spec; its `name` is the job's."""
    values = json.loads(_text(job))
    if "spec" not in values:
        values = {"metadata": {"name": values.pop("name", "run")}, "spec": values}
    return Document(Path(), {**_WHOLE, **values})


def _text(job: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(job, indent=2, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the job can't be written as a file: {error}", fix="use plain values in it") from None


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    raise TypeError(f"it holds a {type(value).__name__}")


def _near(path: Path) -> str:
    """Relative to the current directory where it is below it: an absolute path isn't taken to a cluster."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _texts(overrides: Overrides) -> tuple[str, ...]:
    if isinstance(overrides, Mapping):
        return tuple(f"{field}={_text(value).decode()}" for field, value in overrides.items())
    return (overrides,) if isinstance(overrides, str) else tuple(overrides)


def _recipe(parts: JobParts) -> dict[str, bytes]:
    """Recipe and hooks by file name: what trainers alone run may import torch."""
    recipe: dict[str, Callable[..., Any] | type] = {}
    if isinstance(parts.workflow, type):
        recipe[parts.workflow.__name__] = parts.workflow
    if parts.reward is not None:
        recipe["reward"] = parts.reward
    hooks = None if isinstance(parts.hooks, str | os.PathLike) else parts.hooks
    files = (("recipe.py", recipe), ("hooks.py", _named(hooks or ())))
    return {name: recipe_text(wanted).encode() for name, wanted in files if wanted}


def _named(hooks: Sequence[Callable[..., Any]] | Callable[..., Any]) -> dict[str, Callable[..., Any] | type]:
    given: dict[str, Callable[..., Any] | type] = {
        getattr(hook, "__name__", repr(hook)): hook for hook in ([hooks] if callable(hooks) else hooks)
    }
    if strange := given.keys() - set(_HOOKS):
        raise ConfigError(f"{', '.join(sorted(strange))} is no hook", fix=f"name the function {' or '.join(_HOOKS)}")
    return given


def _lines(rows: Any, what: str) -> bytes:
    """Rows as JSON lines: of a list, a `datasets.Dataset`, a data frame of pandas."""
    found = rows.to_dict("records") if hasattr(rows, "iterrows") else rows
    lines = []
    for number, row in enumerate(found):
        try:
            lines.append(orjson.dumps(dict(row), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        except (TypeError, ValueError) as error:
            raise DataError(f"{what}[{number}] is no row: {error}", fix="give dicts of texts, numbers, lists") from None
    return b"".join(lines)
