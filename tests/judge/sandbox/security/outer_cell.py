"""Starts the arena in an outer cell: namespaces, private /tmp and /dev/shm, a cgroup with caps. Needs root.

Attacks run in it with layers of the sandbox switched off; the machine and its other processes are out of their reach.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from areal_judge.sandbox.host.delegation import find, make_parent
from support.as_user import open_home

_MEMORY_BYTES = 1400 << 20
_TASKS = 400
_WITHIN_S = 150
_SHARED_FILES = sorted(str(path) for path in Path(os.__file__).parent.glob("*.py"))
_numbers = itertools.count()
_REPOSITORY = Path(__file__).resolve().parents[4]
_SCRIPT = """
set -e
for list in $JOIN; do echo $$ > "$list"; done
exec unshare --pid --fork --kill-child=KILL --mount --net --ipc --uts --propagation=private --mount-proc sh -c '
set -e
for group in $GROUPS_MADE; do mount --bind "$group" "$group"; done
for place in $(cut -d " " -f 5 /proc/self/mountinfo | sort -u); do
  case " $GROUPS_MADE /proc " in
    *" $place "*) ;;
    *) mount -o remount,bind,ro "$place" 2>/dev/null || true ;;
  esac
done
if test -n "$KEPT"; then mount -n --bind "$KEPT" /mnt; fi
mount -t tmpfs -o size=512m,mode=1777 none /tmp
for place in /dev/shm /var/tmp /run; do mount -t tmpfs -o size=64m,mode=1777 none $place; done
if test -n "$KEPT"; then mkdir -p "$KEPT"; mount --move /mnt "$KEPT"; fi
test ! -w /etc/passwd
eval "$OPEN_HOME"
exec "$@"' sh "$@"
"""
"""Everything of the machine is read-only in there, but for the cgroups that were made for it."""


def lacking() -> str:
    """Why there can be no outer cell here; empty when there can."""
    return "" if os.geteuid() == 0 else "an outer cell for attacks needs root"


def _remove(group: str) -> None:
    """Removes a group and those below it, which a service that was killed left."""
    for place, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(place)


@contextlib.contextmanager
def _groups() -> Iterator[tuple[str, list[str]]]:
    """A group for everything: the directory that knows its memory, and the lists to join."""
    delegation = find()
    if delegation.version != 1:
        yield "", []
        return
    made = make_parent(delegation, f"arena{os.urandom(3).hex()}")
    try:
        groups = dict(zip(delegation.directories, map(Path, made), strict=True))
        (groups["memory"] / "memory.limit_in_bytes").write_text(str(_MEMORY_BYTES))
        (groups["pids"] / "pids.max").write_text(str(_TASKS))
        yield str(groups["memory"]), [f"{group}/cgroup.procs" for group in groups.values()]
    finally:
        until = time.monotonic() + 5
        while any(os.path.isdir(path) for path in made) and time.monotonic() < until:
            for path in made:
                _remove(path)
            time.sleep(0.05)


def fight(
    attacks: Sequence[str], *, tier: str, uid: int = 0, off: Sequence[str] = (), at_once: int = 4
) -> dict[str, Any]:
    """Runs attacks against a sandbox of a tier that a user started, with layers off; what `arena` says."""
    with _groups() as (memory, join):
        told = {
            "attacks": list(attacks), "tier": tier, "uid": uid, "off": list(off), "at_once": at_once,
            "memory_group": memory, "shared_file": _SHARED_FILES[(os.getpid() + next(_numbers)) % len(_SHARED_FILES)],
        }  # fmt: skip
        environment = {
            "PATH": os.environ["PATH"], "JOIN": " ".join(join), "GROUPS_MADE": " ".join(map(os.path.dirname, join)),
            "OPEN_HOME": open_home(),
            "KEPT": str(_REPOSITORY) if _REPOSITORY.is_relative_to("/tmp") else "",
            "PYTHONPATH": f"{_REPOSITORY / 'tests/judge'}:{_REPOSITORY / 'tests'}:{_REPOSITORY / 'services'}",
        }  # fmt: skip
        done = subprocess.run(
            ["sh", "-c", _SCRIPT, "sh", sys.executable, "-m", "sandbox.security.arena", json.dumps(told)],
            env=environment, capture_output=True, text=True, timeout=_WITHIN_S, check=False, cwd="/",
        )  # fmt: skip
        if done.returncode or not done.stdout:
            raise AssertionError(f"the arena ended with {done.returncode}: {done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found
