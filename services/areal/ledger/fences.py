"""Fences: one growing integer for each start of the trainer or of the controller.

Owns their allocation by exclusive creation of a file on the run's volume, which decides between two that start at once,
whatever Redis remembers. A fence is never given twice. Trainer's and controller's are two counters that are never
compared.
"""

import os
import re
from pathlib import Path
from typing import Literal

from areal.errors import InfraError
from areal.files import sync_directory

Role = Literal["trainer", "controller"]

MAX_RACES = 1000
"""Losing the race for a file this often in a row is no race but a broken volume."""


def allocate(directory: Path, role: Role) -> int:
    """The next fence of a role (from 1). Raises `InfraError` when the volume can't create a file exclusively."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fence = newest(directory, role) + 1
        for _ in range(MAX_RACES):
            try:
                descriptor = os.open(directory / f"{role}-{fence:08d}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                fence += 1
                continue
            os.close(descriptor)
            sync_directory(directory)
            return fence
    except OSError as error:
        raise InfraError(
            f"can't allocate a fence in {directory}: {error.strerror}", fix="check the run's volume"
        ) from error
    raise InfraError(f"can't allocate a fence in {directory}: every name is taken", fix="check the run's volume")


def newest(directory: Path, role: Role) -> int:
    """The newest fence of a role, 0 when it never started."""
    pattern = re.compile(rf"{role}-(\d+)")
    names = os.listdir(directory) if directory.is_dir() else []
    return max((int(match[1]) for name in names if (match := pattern.fullmatch(name))), default=0)
