"""One `areal run` a run directory: a lock on the directory itself, and moving an earlier run out of the way.

The lock is on the directory's inode, so that a link or a bind mount to it is the same directory.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from areal.errors import ConfigError

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
