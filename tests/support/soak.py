"""What a whole run holds, role by role, early and late: memory, descriptors, threads, tasks, live objects by type."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from support.job_run import VICTIMS, JobRun

COUNTED = Path(__file__).parent / "counted"  # its sitecustomize counts objects in a role
_WITHIN_S = 60.0


@dataclass(frozen=True)
class Held:
    """What one role holds at a step."""

    step: int
    pid: int
    memory_bytes: int
    descriptors: int
    threads: int
    objects: Mapping[str, int]

    @property
    def tasks(self) -> int:
        return self.objects.get("_asyncio.Task", 0)


def environment(counts: Path) -> dict[str, str]:
    """What a run needs in its environment to be looked at."""
    counts.mkdir()
    paths = [str(COUNTED), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "AREAL_COUNTS": str(counts)}


def look(run: JobRun, counts: Path) -> dict[str, Held]:
    """What each role of a run holds now."""
    found = {}
    for role, words in VICTIMS.items():
        process = run.processes(*words)[-1]
        objects = {} if role == "redis" else _objects(process, counts / f"{process.pid}.json")
        with process.oneshot():
            memory = process.memory_info()
            found[role] = Held(
                run.step(),
                process.pid,
                int(memory.rss - memory.shared),  # pages of a library are unique only while no other process maps it
                process.num_fds(),
                process.num_threads(),
                objects,
            )
    return found


def _objects(process: psutil.Process, path: Path) -> dict[str, int]:
    path.unlink(missing_ok=True)
    process.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + _WITHIN_S
    while not path.exists():
        assert process.is_running(), f"{process} ended"
        assert time.monotonic() < deadline, f"{process} did not count its objects"
        time.sleep(0.05)
    counts: dict[str, int] = json.loads(path.read_text())
    return counts


def growing(early: Held, late: Held, per_step: float) -> dict[str, int]:
    """Types of which a role has more, by at least so many objects a step."""
    more = {kind: count - early.objects.get(kind, 0) for kind, count in late.objects.items()}
    return {kind: count for kind, count in more.items() if count >= per_step * (late.step - early.step)}


def table(early: Mapping[str, Held], late: Mapping[str, Held]) -> str:
    """A line a role: early, late, and memory's slope."""
    lines = [
        f"{'role':<12}{'steps':>14}{'MB':>16}{'MB/1000 steps':>15}"
        f"{'descriptors':>13}{'threads':>9}{'tasks':>9}{'objects':>18}"
    ]
    for role, first in early.items():
        last = late[role]
        lines.append(
            f"{role:<12}{f'{first.step}-{last.step}':>14}"
            f"{f'{first.memory_bytes / 1e6:.1f}-{last.memory_bytes / 1e6:.1f}':>16}{slope_mb(first, last):>15.2f}"
            f"{f'{first.descriptors}-{last.descriptors}':>13}{f'{first.threads}-{last.threads}':>9}"
            f"{f'{first.tasks}-{last.tasks}':>9}{f'{sum(first.objects.values())}-{sum(last.objects.values())}':>18}"
        )
    return "\n".join(lines)


def slope_mb(early: Held, late: Held) -> float:
    """Megabytes that a role took in a thousand steps."""
    return (late.memory_bytes - early.memory_bytes) / 1e6 / max(1, late.step - early.step) * 1000
