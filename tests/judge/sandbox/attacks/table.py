"""What an attack is: a program, what it must not bring about, and how that is seen from outside.

Sources find their targets in `T`, a dictionary that is put before them: paths, ports, numbers of processes. No secret
is in it. A secret that turns up in what a run printed was read where it must not be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from areal_judge.sandbox.values import DEFAULT_LIMITS, Ending, Limits


class Category(StrEnum):
    RESOURCE = "resource"
    ISOLATION = "isolation"
    VERDICT = "verdict"
    NATIVE = "native"
    MATH = "math"


class Seen(StrEnum):
    """How the success of an attack is seen, by somebody other than the attack."""

    SECRET = "secret"  # its output, or what it keeps, holds text that exists only outside
    CONNECTION = "connection"  # a server outside had a visitor
    VICTIM = "victim"  # a process outside was ended, stopped, traced or changed
    SURVIVOR = "survivor"  # a process with the attack's name is there after the run
    LEFTOVER = "leftover"  # a file, segment, queue or name with the attack's mark is there after the run
    LOCK = "lock"  # a lock on a file that everybody can read is held while the run lives
    ENDING = "ending"  # the run did not end as it had to
    LATE = "late"  # the run was over later than its wall limit allows
    MEMORY = "memory"  # the processes of the run had more memory than their limit, together
    REACHED = "reached"  # a system call got past the filter: its answer is neither EPERM nor ENOSYS. Nothing outside
    # changes, so the program's own word is taken; that it tells the truth is seen with the layer switched off


ANY_BOUND = frozenset(
    {
        Ending.CPU_LIMIT, Ending.WALL_LIMIT, Ending.MEMORY_LIMIT, Ending.OUTPUT_LIMIT, Ending.DISK_LIMIT,
        Ending.PROCESS_LIMIT, Ending.EXITED, Ending.SIGNALED,
    }
)  # fmt: skip
TIME = frozenset({Ending.CPU_LIMIT, Ending.WALL_LIMIT})


@dataclass(frozen=True)
class Attack:
    """One attack."""

    name: str
    category: Category
    must_not: str
    seen: Seen
    layers: tuple[str, ...]  # those that stop it; any one of them is enough
    source: str
    endings: frozenset[Ending] = ANY_BOUND  # how its run may end
    limits: Limits = DEFAULT_LIMITS
    bound_bytes: int = 0  # of Seen.MEMORY; 0 is the run's memory limit
    never_clean: bool = False  # an exit code of 0 is a success of the attack
    several: bool = False  # tries with processes and scratch where the tier has them
    keep: tuple[str, ...] = ()
    stdin: bytes = b""
    file: str = ""  # of a native attack: what its source is called in the scratch
    command: str = ""  # of a native attack: what the shell does with it
    tool: str = ""  # of a native attack: the program that has to be there


def prepared(attack: Attack, targets: Mapping[str, object]) -> str:
    """The source with its targets: in `T`, or for each @name@ of a native one."""
    if not attack.command:
        return f"T = {dict(targets)!r}\n{attack.source}"
    source = attack.source
    for name, value in targets.items():
        source = source.replace(f"@{name}@", str(value))
    return source
