"""Exported models of a run: a sealed Hugging Face directory a step, the newest few and the best kept.

Owns `exports/`: `step-N` directories, each whole from the moment that it has its name, and `best`, a link to the one
with the highest score. One process writes; a reader that holds `reading` keeps a directory from being removed.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import BaseModel, ValidationError

from areal.errors import ConfigError, InfraError
from areal.files import read_lines, sync_directory, sync_file, write_atomically
from areal.values.policy import PolicyId
from areal.weights.manifest import MANIFEST_NAME

MARKER = "areal_export.json"
"""Written into a directory last; readers lock it."""

BEST = "best"
_NAME = re.compile(r"step-(\d+)\Z")
_UNFINISHED, _TRASH = ".tmp-", ".trash-"


class ExportRecord(BaseModel):
    """What a directory says of itself."""

    step: int
    policy: str


@dataclass(frozen=True)
class ExportScore:
    """A step's figure; `better` is what compares."""

    figure: float
    lower_is_better: bool = False

    @property
    def better(self) -> float:
        """Grows with quality."""
        return -self.figure if self.lower_is_better else self.figure


def retained(steps: Sequence[int], scores: Mapping[int, ExportScore], keep: int) -> set[int]:
    """The steps that stay: the newest `keep`, the best, and as many again whose evaluation is still to end.

    A step waits for its evaluation while it is newer than every evaluated one.
    """
    ordered = sorted(steps)
    newest_score = max(scores, default=-1)
    waiting = [step for step in ordered[:-keep] if step > newest_score] if scores else []
    best = best_of(ordered, scores)
    return {*ordered[-keep:], *waiting[:keep], *([] if best is None else [best])}


def best_of(steps: Sequence[int], scores: Mapping[int, ExportScore]) -> int | None:
    """The step with the best score, the earliest of equals; None when none of them has one."""
    scored = [step for step in sorted(steps) if step in scores]
    return max(scored, key=lambda step: (scores[step].better, -step), default=None)


def scores_in(evaluations: Path, metric: str) -> dict[int, ExportScore]:
    """The figure `metric` of each evaluated version, by `evaluations.jsonl`; of a version measured twice the newer."""
    found: dict[int, ExportScore] = {}
    of_set, _, figure = metric.rpartition("/")
    for line in read_lines(evaluations).whole:
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            row = orjson.loads(line)
            figures = row["sets"][of_set] if of_set else row
            found[int(row["version"])] = ExportScore(float(figures[figure]), row.get("metric") == "loss")
    return found


class Exports:
    """The exports of one run, as their one writer has them."""

    def __init__(self, root: Path, *, interval: int, keep: int, evaluations: Path, metric: str = "mean") -> None:
        self._root = root
        self._interval = interval
        self._keep = keep
        self._evaluations = evaluations
        self._metric = metric

    def due(self, step: int) -> bool:
        """Whether a step is one to export. The start model is there already."""
        return step > 0 and step % self._interval == 0

    def lacks(self, policy: PolicyId) -> bool:
        """Whether a policy is to be exported and isn't, or another trainer's of that step is there."""
        if not self.due(policy.version):
            return False
        there = exported(self._root / f"step-{policy.version}")
        return there is None or PolicyId.parse(there.policy) < policy

    def add(self, policy: PolicyId, write: Callable[[Path], None]) -> Path | None:
        """Seal the directory that `write` makes at the path it is given; None where a reader holds the one before.

        Raises InfraError when the disk refuses.
        """
        target = self._root / f"step-{policy.version}"
        staging = self._root / f"{_UNFINISHED}{target.name}-{uuid.uuid4().hex[:8]}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            _sweep(self._root, _UNFINISHED)
            write(staging)
            for path in staging.rglob("*"):
                if path.is_file():
                    sync_file(path)
            marker = ExportRecord(step=policy.version, policy=str(policy))
            write_atomically(staging / MARKER, marker.model_dump_json().encode())
            sync_directory(staging)
            if target.exists() and not _remove(target):
                shutil.rmtree(staging, ignore_errors=True)
                return None
            staging.rename(target)
            sync_directory(self._root)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise InfraError(
                f"exporting {policy} to {target} failed: {error}",
                fix="Free space on the run's volume, or raise export.intervalSteps.",
            ) from error
        self.tidy()
        return target

    def tidy(self) -> None:
        """Point `best` at the best so far, and remove what need not stay and nobody reads."""
        steps, scores = exported_steps(self._root), scores_in(self._evaluations, self._metric)
        if not steps:
            return
        link, best = self._root / BEST, best_of(steps, scores)
        if best is not None and not (link.is_symlink() and os.readlink(link) == f"step-{best}"):
            fresh = link.with_name(f".{link.name}-{uuid.uuid4().hex[:8]}")
            fresh.symlink_to(f"step-{best}")
            fresh.replace(link)
        stay = retained(steps, scores, self._keep)
        for step in steps:
            if step not in stay:
                _remove(self._root / f"step-{step}")
        _sweep(self._root, _TRASH)


def exported(directory: Path) -> ExportRecord | None:
    """Record of a sealed export; None for anything else."""
    try:
        return ExportRecord.model_validate_json((directory / MARKER).read_bytes())
    except (OSError, ValidationError):
        return None


def exported_steps(root: Path) -> list[int]:
    """The steps of all sealed exports under `root`, in order."""
    if not root.is_dir():
        return []
    names = (_NAME.match(path.name) for path in root.iterdir() if exported(path) is not None)
    return sorted(int(name[1]) for name in names if name is not None)


def link_version(version: Path, target: Path) -> None:
    """A published version as a plain Hugging Face directory, sharing its files' bytes where the disk can."""
    target.mkdir(parents=True)
    for source in sorted(version.iterdir()):
        if source.name == MANIFEST_NAME:
            continue
        try:
            os.link(source, target / source.name)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            shutil.copy2(source, target / source.name)


@contextlib.contextmanager
def reading(model: Path) -> Iterator[Path]:
    """A model's own directory, links followed; an export stays on disk while this is held.

    Raises ConfigError when an export was removed before it could be held.
    """
    with contextlib.ExitStack() as stack:
        for _ in range(3):  # `best` may point elsewhere by the time that its target is locked
            found = model.resolve()
            if exported(found) is None:
                break
            try:
                file = stack.enter_context((found / MARKER).open("rb"))
                fcntl.flock(file, fcntl.LOCK_SH)
                if os.fstat(file.fileno()).st_ino == (found / MARKER).stat().st_ino:
                    break
            except FileNotFoundError:
                continue
        else:
            raise ConfigError(f"{model} was removed while it was opened", fix="name another export, or `best`")
        yield found


def _remove(directory: Path) -> bool:
    """Remove an export under another name, unless a process reads it."""
    try:
        with (directory / MARKER).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            trash = directory.with_name(f"{_TRASH}{directory.name}-{uuid.uuid4().hex[:8]}")
            directory.rename(trash)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    shutil.rmtree(trash, ignore_errors=True)
    return True


def _sweep(root: Path, prefix: str) -> None:
    """Removes what a writer that died left behind."""
    for path in root.iterdir():
        if path.name.startswith(prefix):
            shutil.rmtree(path, ignore_errors=True)
