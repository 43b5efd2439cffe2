"""CPU and memory limits of this pod: its cgroup's where there are any, else the machine's."""

import math
import os
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def pod_memory_bytes(root: Path = _CGROUP, membership: Path = _MEMBERSHIP) -> int:
    """Bytes that this process and its runs may use together."""
    places = _places(root, membership, "memory")
    texts = [_read(place / name) for place in places for name in ("memory.max", "memory.limit_in_bytes")]
    return min([int(psutil.virtual_memory().total), *(int(text) for text in texts if text.isdigit())])


def pod_cores(root: Path = _CGROUP, membership: Path = _MEMBERSHIP) -> int:
    """Cores that it may keep busy, a begun one counted: at least 1."""
    cores = float(len(os.sched_getaffinity(0)))
    for place in _places(root, membership, "cpu"):
        quota, period = _quota(place)
        if quota > 0 and period > 0:
            cores = min(cores, quota / period)
    return max(1, math.ceil(cores - 0.01))


def _quota(place: Path) -> tuple[int, int]:
    """Microseconds of processor time in each period; 0 without a limit."""
    both = _read(place / "cpu.max").split()
    if len(both) != 2:
        both = [_read(place / "cpu.cfs_quota_us"), _read(place / "cpu.cfs_period_us")]
    quota, period = (int(text) if text.isdigit() else 0 for text in both)
    return quota, period


def _places(root: Path, membership: Path, controller: str) -> list[Path]:
    """Where limits of this process may stand: both versions of cgroups, as the host or as a container sees them."""
    places = [root, root / controller]
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return places
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            places += _upwards(root, path)
        elif controller in controllers.split(","):
            places += _upwards(root / controller, path)
    return places


def _upwards(base: Path, path: str) -> list[Path]:
    """A group and those around it: the tightest of their limits counts."""
    own = base / path.lstrip("/")
    return [own, *(each for each in own.parents if each.is_relative_to(base))]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
