"""One `areal run` a run directory: a lock beside it, and moving an earlier run out of the way."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal.errors import ConfigError


@contextmanager
def claimed(run_dir: Path) -> Iterator[None]:
    """Hold `run_dir` for this process; the kernel lets go of it when the process ends, however it ends."""
    path = run_dir.with_name(f".{run_dir.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"can't write beside {run_dir}: {error.strerror}", fix="choose another directory with --run-dir"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigError(
                f"{run_dir} is in use by another `areal run` (pid {holder})",
                fix="wait for it, stop it, or choose another directory with --run-dir",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
        path.unlink(missing_ok=True)  # still locked: nobody else can have taken it
    finally:
        os.close(descriptor)


def set_aside(run_dir: Path) -> Path | None:
    """Rename an existing directory to `<name>.1`, `.2`, … so that nothing is lost; None when there is none."""
    if not run_dir.exists():
        return None
    number = 1
    while (target := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
        number += 1
    run_dir.rename(target)
    return target
