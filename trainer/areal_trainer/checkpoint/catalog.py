"""Checkpoint catalogue: the checkpoints of a run, and which of them a restart may use.

Owns the directory's names (`step-000120.f7`), the record beside the tensors, and the rule of lineage. A checkpoint
without a whole record, or with a file of another size or checksum, does not exist. Never needs torch.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import xxhash
from areal.files import sync_directory, sync_file

RECORD = "trainer.json"
PARTIAL = ".tmp"
_NAME = re.compile(r"step-(\d{6,})\.f(\d+)")
_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class Record:
    """What a checkpoint says besides its tensors. `step` is the policy version: batches consumed."""

    step: int
    fence: int
    next_group: int
    tombstones_below: int
    optimizer_updates: int
    world_size: int
    model_digest: str  # of the start model's configuration: another architecture must not load
    files: dict[str, tuple[int, str]]  # size and xxh3 of every other file
    critic_updates: int = 0  # of the critic's optimizer, where there is one


@dataclass(frozen=True)
class Found:
    """A whole checkpoint."""

    path: Path
    record: Record


@dataclass(frozen=True)
class Began:
    """A trainer with this fence began at this step."""

    fence: int
    from_step: int


def name(step: int, fence: int) -> str:
    """`step-000120.f7`; sorts by step."""
    return f"step-{step:06d}.f{fence}"


def listing(directory: Path) -> list[tuple[int, int, Path]]:
    """(fence, step, path) of all complete-looking names, newest lineage first."""
    if not directory.is_dir():
        return []
    matches = [(match, path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(((int(m[2]), int(m[1]), path) for m, path in matches), reverse=True)


def survives(step: int, fence: int, began: Sequence[Began]) -> bool:
    """Whether no later trainer began below `step`.

    A trainer that was replaced but did not know it may still write checkpoints; history went on from an older one, so
    what it wrote is no longer this run's past.
    """
    return not any(other.fence > fence and other.from_step < step for other in began)


def newest(directory: Path, began: Sequence[Began] = ()) -> tuple[Found | None, list[str]]:
    """The newest checkpoint to go on from, and why newer ones were passed over."""
    passed: list[str] = []
    for fence, step, path in listing(directory):
        if not survives(step, fence, began):
            passed.append(f"{path.name}: a later trainer began before it")
            continue
        problem, record = examine(path)
        if record is not None:
            return Found(path, record), passed
        passed.append(f"{path.name}: {problem}")
    return None, passed


def examine(path: Path) -> tuple[str, Record | None]:
    """A checkpoint's record when everything is there as it was written, or what is wrong."""
    try:
        raw: dict[str, Any] = json.loads((path / RECORD).read_text())
        record = Record(**{**raw, "files": {key: (int(v[0]), str(v[1])) for key, v in raw["files"].items()}})
    except (OSError, ValueError, TypeError, KeyError) as error:
        return f"its record can't be read ({error})", None
    for file, expected in record.files.items():
        try:
            actual = fingerprint(path / file)
        except OSError as error:
            return f"{file} can't be read ({error.strerror})", None
        if actual != expected:
            return f"{file} differs from what was written", None
    return "", record


def fingerprint(path: Path) -> tuple[int, str]:
    """Size and xxh3 of a file."""
    digest = xxhash.xxh3_64()
    size = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def seal(partial: Path, record: Record) -> None:
    """Write the record last, and put everything on disk: after this the directory may get its name."""
    target = partial / RECORD
    target.write_text(json.dumps(asdict(record), indent=1))
    for file in [*record.files, RECORD]:
        sync_file(partial / file)
    sync_directory(partial)


def collect(directory: Path, keep: int) -> list[Path]:
    """Remove all but the `keep` newest, and what was left half-written. Returns what was removed."""
    doomed = [path for _, _, path in listing(directory)[max(1, keep) :]]
    doomed += [path for path in directory.iterdir() if path.name.endswith(PARTIAL)]
    for path in doomed:
        shutil.rmtree(path, ignore_errors=True)
    return doomed
