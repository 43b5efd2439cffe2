"""A directory of certificates as pods mount it, whose leaf and authority a test replaces as an operator does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from areal.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from areal_operator.operator.certificates import Pair, made

DAY = 86400.0


def authority(life_s: float = 30 * DAY) -> Pair:
    """A new one."""
    return made("authority", time.time(), life_s)


def leaf(signer: Pair, names: Sequence[str] = ("localhost",)) -> Pair:
    """A new certificate for a process on this machine."""
    return made("role", time.time(), DAY, signer, names)


def put(directory: Path, shown: Pair, *trusted: Pair) -> Path:
    """Write the files, as a kubelet does: into a new folder, to which a link is switched at once."""
    directory.mkdir(exist_ok=True)
    folder = directory / f"..{time.monotonic_ns()}"
    folder.mkdir()
    (folder / CA_FILE).write_text("".join(crt for crt, _ in trusted))
    (folder / CERTIFICATE_FILE).write_text(shown[0])
    (folder / KEY_FILE).write_text(shown[1])
    link = directory / "..new"
    link.symlink_to(folder.name)
    link.replace(directory / "..data")
    for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    return directory
