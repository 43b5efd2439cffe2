"""How much memory this pod has: its cgroup's limit where there is one, else the machine's."""

from __future__ import annotations

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def pod_memory_bytes(root: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that this process and its runs may use together."""
    limits = [limit for path in _files(root, membership) if (limit := _read(path)) is not None]
    return min([int(psutil.virtual_memory().total), *limits])


def _files(root: Path, membership: Path) -> list[Path]:
    """Where limits of this process may stand: both versions of cgroups, as the host or as a container sees them."""
    found = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = path.lstrip("/")
        if not controllers:
            found.append(root / own / "memory.max")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / own / "memory.limit_in_bytes")
    return found


def _read(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
