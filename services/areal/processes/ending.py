"""Termination message of a container: the file whose text Kubernetes keeps in the pod's status."""

from __future__ import annotations

import os
from pathlib import Path

LIMIT_BYTES = 4096
"""Kubernetes cuts there."""

_PATH = Path("/dev/termination-log")


def leave(message: str, path: Path | None = None) -> bool:
    """Write `message` where Kubernetes looks for it; False where there is no such place."""
    place = path or Path(os.environ.get("AREAL_TERMINATION_LOG") or _PATH)
    if path is None and place == _PATH and not place.exists():
        return False
    try:
        place.write_bytes(message.encode()[:LIMIT_BYTES])
    except OSError:
        return False
    return True
