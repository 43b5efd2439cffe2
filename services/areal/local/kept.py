"""Runs that lie on this disk: what each came to, how large it is, and what of it can go.

Of a complete run the ledger, the published versions and the checkpoints are of use to nobody who doesn't go on with it;
figures, samples, evidence, logs and the final model stay. A run that stopped or failed goes on from them, so they stay
unless somebody asks. Nothing is taken from a run that a process holds.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from areal.errors import ConfigError, DataError
from areal.plan.layout import RunLayout
from areal.record import summary

CLEANED = "cleaned"
"""A file that says that a run can't be gone on with: what it would start from was removed."""

_DEEPEST = 3  # directories below a place: runs/sweep/variant/seed
_GOING = ".going"


@dataclass(frozen=True)
class KeptRun:
    """A run directory. Sizes are bytes on the disk, `ended` seconds since 1970."""

    place: Path
    status: str  # Running; a summary's; Unfinished without a summary, Damaged with one that can't be read
    steps: int
    held_out: float | None
    size: int
    spare: int  # of it, what only going on needs
    ended: float

    @property
    def over(self) -> bool:
        """Whether it came to its end, so that nobody goes on with it."""
        return self.status in ("Complete", "NothingLearned")


def kept(places: Iterable[Path]) -> list[KeptRun]:
    """The runs in and below `places`, the newest first."""
    roots = dict.fromkeys(root for place in places for root in _roots(place, _DEEPEST))
    return sorted(map(look, roots), key=lambda run: -run.ended)


def look(root: Path) -> KeptRun:
    """What is known of one run directory."""
    layout = RunLayout(root)
    try:
        told = summary.read(layout.summary) or {"status": "Unfinished"}
    except DataError:
        told = {"status": "Damaged"}
    spare = sum(map(_size, _spare(layout)))
    newest = max(one.stat().st_mtime for one in (layout.metrics, layout.summary, layout.resolved) if one.exists())
    return KeptRun(
        root,
        "Running" if is_held(root) else str(told["status"]),
        int(told.get("steps", 0)),
        (told.get("heldOut") or {}).get("last"),
        _size(root),
        spare,
        newest,
    )


def remove(run: KeptRun, *, whole: bool) -> None:
    """Remove a run's spare parts, or its directory. Raises ConfigError when a process holds it.

    A part is renamed before it is emptied, and a directory loses `resolved.json` first: whatever is interrupted, half a
    checkpoint or half a run is never read as a whole one.
    """
    layout = RunLayout(run.place)
    with claimed(run.place):
        if whole:
            layout.resolved.unlink(missing_ok=True)
            shutil.rmtree(run.place)
            return
        remove_spare(layout)


def remove_spare(layout: RunLayout) -> None:
    """The same of a run's spare parts, where its caller knows that no process needs them."""
    (layout.root / CLEANED).touch()
    for part in reversed(_spare(layout)):  # what an earlier removal left, first
        shutil.rmtree(part if part.suffix == _GOING else part.rename(part.with_name(part.name + _GOING)))


def refuse_cleaned(run_dir: Path) -> None:
    """Raise ConfigError where a run's checkpoints were removed: going on would train its groups again."""
    if (run_dir / CLEANED).exists():
        raise ConfigError(
            f"{run_dir} can't be gone on with: `areal clean` removed its checkpoints and its ledger",
            fix="start anew with --fresh, or from its final model: model.path=" + str(RunLayout(run_dir).model),
        )


def _spare(layout: RunLayout) -> list[Path]:
    parts = (layout.redis, layout.weights, layout.checkpoints)
    both = (one for part in parts for one in (part, part.with_name(part.name + _GOING)))
    return [one for one in both if one.is_dir()]


def _roots(place: Path, deepest: int) -> Iterator[Path]:
    if not place.is_dir() or not os.access(place, os.R_OK | os.X_OK):  # another user's run is no business of this one
        return
    if (place / "resolved.json").is_file():
        yield place
    elif deepest:
        for below in sorted(place.iterdir()):
            if below.is_dir() and not below.is_symlink():
                yield from _roots(below, deepest - 1)


def is_held(root: Path) -> bool:
    """Whether a process holds the run; looked at by a shared lock, so that two who list see no run in each other."""
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _size(root: Path) -> int:
    """Bytes on the disk below `root`; a file with two names counts once."""
    files: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                stat = os.lstat(os.path.join(directory, name))
            except FileNotFoundError:  # a run that goes on
                continue
            files[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sum(files.values())


# ---- One `areal run` a run directory: a lock on the directory itself, and moving an earlier run out of the way
# The lock is on the directory's inode, so that a link or a bind mount to it is the same directory.


_LOCKS = Path("/proc/locks")


class Claim:
    """Directories that this process holds; the kernel lets go of them when it ends, however it ends."""

    def __init__(self) -> None:
        self._held: list[tuple[Path, int]] = []

    def take(self, run_dir: Path) -> None:
        """Hold `run_dir`, made for its owner alone where it isn't there; raises ConfigError when another run does."""
        try:
            str(run_dir).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{str(run_dir)!a} is no UTF-8 text", fix="name another with --run-dir") from None
        try:
            if not run_dir.exists():
                run_dir.mkdir(parents=True)
                run_dir.chmod(0o700)  # prompts, answers and weights are its owner's
            descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"can't write {run_dir}: {error.strerror}", fix="choose another directory with --run-dir"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.fstat(descriptor).st_ino)
            os.close(descriptor)
            raise ConfigError(
                f"{run_dir} is in use by another `areal run` (pid {holder})",
                fix="wait for it, stop it, or choose another directory with --run-dir",
            ) from None
        self._held.append((run_dir, descriptor))

    def release(self) -> None:
        """Let go; a directory that stayed empty is removed, while it is still held."""
        for run_dir, descriptor in self._held:
            with suppress(OSError):
                run_dir.rmdir()
            os.close(descriptor)
        self._held.clear()


@contextmanager
def claimed(run_dir: Path) -> Iterator[Claim]:
    """Hold `run_dir`, and what else is taken, for a while."""
    claim = Claim()
    try:
        claim.take(run_dir)
        yield claim
    finally:
        claim.release()


def _holder(inode: int) -> str:
    """The pid that holds a lock on an inode, as far as the kernel tells."""
    with suppress(OSError):
        for line in _LOCKS.read_text().splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                return words[4]
    return "unknown"


def is_occupied(run_dir: Path) -> bool:
    """Whether anything is in a directory."""
    return run_dir.is_dir() and any(run_dir.iterdir())


def set_aside(run_dir: Path) -> Path | None:
    """Rename an existing directory to `<name>.1`, `.2`, … so that nothing is lost; None when there is nothing in it."""
    if not is_occupied(run_dir):
        return None
    number = 1
    while (target := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
        number += 1
    run_dir.rename(target)
    return target
