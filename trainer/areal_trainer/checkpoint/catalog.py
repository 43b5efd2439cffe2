"""Checkpoint catalogue: the checkpoints of a run, and which of them a restart may use.

Owns the directory's names (`step-000120.f7`), the record beside the tensors, and the rule of lineage. A checkpoint
without a whole record, or with a file of another size or checksum, does not exist. Never needs torch.
"""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from areal.files import sync_directory, sync_file

RECORD = "trainer.json"
PARTIAL = ".tmp"
_NAME = re.compile(r"step-(\d{6,})\.f(\d+)")
_WRITER = re.compile(r"__(\d+)_\d+\.distcp|rng-[a-z]+-(\d+)\.npy")
_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class CheckpointRecord:
    """What a checkpoint says besides its tensors. `step` is the policy version: batches consumed."""

    step: int
    fence: int
    optimizer_updates: int
    world_size: int
    model_digest: str  # of the start model's configuration: another architecture must not load
    files: dict[str, tuple[int, str]]  # size and xxh3 of every other file
    critic_updates: int = 0  # of the critic's optimizer, where there is one
    other_updates: dict[str, int] = field(default_factory=dict)  # of the models of a recipe's stages


@dataclass(frozen=True)
class FoundCheckpoint:
    """A whole checkpoint."""

    path: Path
    record: CheckpointRecord


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


def candidates(directory: Path, began: Sequence[Began]) -> tuple[list[Path], list[str]]:
    """Checkpoints of this run's past, the one to go on from first, and why others are none of them."""
    found = listing(directory)
    past = [path for fence, step, path in found if survives(step, fence, began)]
    passed = [f"{path.name}: a later trainer began before it" for *_, path in found if path not in past]
    return past, passed


def examine(path: Path, rank: int = 0, world_size: int = 1) -> tuple[str, CheckpointRecord | None]:
    """A checkpoint's record when everything is there as it was written, or what is wrong.

    Sizes are those of all files; checksums of this rank's share, so that the ranks together read each file once.
    """
    try:
        raw: dict[str, Any] = json.loads((path / RECORD).read_text())
        record = CheckpointRecord(**{**raw, "files": {key: (int(v[0]), str(v[1])) for key, v in raw["files"].items()}})
    except (OSError, ValueError, TypeError, KeyError) as error:
        return f"its record can't be read ({error})", None
    for file, expected in record.files.items():
        try:
            mine = writer_of(file) % world_size == rank
            same = fingerprint(path / file) == expected if mine else (path / file).stat().st_size == expected[0]
        except OSError as error:
            return f"{file} can't be read ({error.strerror})", None
        if not same:
            return f"{file} differs from what was written", None
    return "", record


def writer_of(file: str) -> int:
    """The rank that wrote a file of a checkpoint: with as many ranks again, the one that loads it."""
    match = _WRITER.fullmatch(file)
    return int(match[1] or match[2]) if match else 0


def fingerprint(path: Path) -> tuple[int, str]:
    """Size and xxh3 of a file."""
    digest = xxhash.xxh3_64()
    size = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def seal(partial: Path, record: CheckpointRecord) -> None:
    """Write the record last: every other file is on disk, and after this the directory may get its name."""
    target = partial / RECORD
    target.write_text(json.dumps(asdict(record), indent=1))
    sync_file(target)
    sync_directory(partial)


def collect(directory: Path, keep: int) -> list[Path]:
    """Remove all but the `keep` newest. Returns what was removed."""
    doomed = [path for _, _, path in listing(directory)[max(1, keep) :]]
    for path in doomed:
        shutil.rmtree(path, ignore_errors=True)
    return doomed


def sweep(directory: Path) -> None:
    """Remove what was left half-written. Nothing may be being written."""
    for path in directory.glob(f"*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)
