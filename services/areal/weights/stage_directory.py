"""Local staging directory of one server: the same path at each start, private, emptied before use.

A server that was killed leaves copies of weights behind; its successor finds them by name and removes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)


def own_directory(run: str, server: str, parent: Path | None = None) -> Path:
    """An empty directory below `parent` (the machine's temporary directory) that only this user can enter.

    `run` and `server` name it: at most one live server may use a pair. Where somebody else holds the name (another
    user's directory, a link, a file), nothing of it is touched, and the directory has a random name.
    """
    parent = parent or Path(tempfile.gettempdir())
    of_run = hashlib.sha256(run.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    path = parent / f"areal-stage-{os.getuid()}-{of_run}-{server}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    try:
        _empty(path)
    except OSError as error:
        log.warning("%s can't be used to stage weights (%s): a new directory is", path, error)
        return Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=parent))
    return path


def _empty(path: Path) -> None:
    """Raises OSError, and changes nothing, unless this is a directory of this user."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(directory).st_uid != os.getuid():
            raise PermissionError("it belongs to another user")
        os.fchmod(directory, 0o700)
        for entry in os.listdir(directory):
            if stat.S_ISDIR(os.lstat(entry, dir_fd=directory).st_mode):
                shutil.rmtree(entry, dir_fd=directory)
            else:
                os.unlink(entry, dir_fd=directory)
    finally:
        os.close(directory)
