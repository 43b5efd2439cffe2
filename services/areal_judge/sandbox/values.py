"""Values of the sandbox: tiers, limits, runs and their ends, for services and cells alike. Standard library only.

A *cell* is what runs live in, one at a time: a process (or a few) behind every layer that the machine offers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Tier(IntEnum):
    """How much stands between a run and the machine. Found by trying what each tier forbids, never by versions."""

    T0 = 0  # nothing but rlimits: only where a person allowed it
    T2 = 2  # seccomp, Landlock, rlimits; no fork, no exec, no file to write: a restricted pod
    T3 = 3  # T2's filters, and namespaces, a private root, quotas, a user a run, a cgroup where one is delegated
    T4 = 4  # T3 or T2 inside a kernel of its own (gVisor, Kata)


class MemoryBound(StrEnum):
    """What limits the memory of a run."""

    CGROUP = "cgroup"  # all its processes together
    PROCESS = "process"  # each process by itself: a run of several may take several times its limit


class Ending(StrEnum):
    """How a run ended. What the program did; what befell the machine is an InfraError instead."""

    EXITED = "exited"  # `exit_code`
    SIGNALED = "signaled"  # `signal`
    WALL_LIMIT = "wall_limit"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    DISK_LIMIT = "disk_limit"
    PROCESS_LIMIT = "process_limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Limits:
    """Bounds of one run."""

    wall_s: float = 4.0
    cpu_s: float = 3.0
    memory_bytes: int = 512 << 20
    output_bytes: int = 1 << 20  # of standard output; one byte more ends the run
    stderr_bytes: int = 64 << 10  # what is above is dropped
    disk_bytes: int = 32 << 20
    inodes: int = 4096
    processes: int = 1  # threads count; 1 forbids fork altogether
    open_files: int = 64
    stack_bytes: int = 64 << 20


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class PythonScript:
    """Python source, run as `__main__` by a process that was forked from a warm interpreter."""

    source: str
    argv: tuple[str, ...] = ()
    prelude: str = ""  # what else the source finds, as it finds builtins: behind its own names


@dataclass(frozen=True)
class Driver:
    """A trusted module of ours that was imported before the fork; its `main(channel, payload)` runs in the cell.

    `channel` is a connected stream socket to the session's holder. `payload` is what the holder gave.
    """

    module: str  # for example areal_judge.judge.drivers.calls
    payload: bytes = b""


@dataclass(frozen=True)
class ImageCommand:
    """A program of the image, for example a compiler or what it made. Needs a tier with exec."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgramRun:
    """One program to run. `files` are laid into its scratch directory, which is its working directory."""

    entry: PythonScript | Driver | ImageCommand
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)  # relative paths; a tier without scratch refuses any
    executable: tuple[str, ...] = ()  # of `files`, those with the x bit
    keep: tuple[str, ...] = ()  # files of the scratch to bring back: regular ones only, never through a link
    limits: Limits = DEFAULT_LIMITS
    writable: bool = True  # whether the scratch can be written where the tier has one
    numpy: bool = (
        False  # whether a Script or Driver finds numpy imported: another kind of zygote, started when first asked
    )
    as_memory: bool = True  # whether RLIMIT_AS holds memory where no cgroup does; a JVM or node can't start under it


@dataclass(frozen=True)
class RunEnding:
    """What became of a run."""

    ending: Ending
    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stderr_truncated: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)  # of `keep`, those that were there
    wall_s: float = 0.0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0  # of its largest process
    memory_peak_bytes: int | None = None  # of all together; None without a cgroup
    setup_s: float = 0.0  # from the asking to the program's first instruction
    tier: Tier = Tier.T0

    @property
    def clean(self) -> bool:
        """Whether it ended by itself, with exit code 0."""
        return self.ending is Ending.EXITED and self.exit_code == 0


@dataclass(frozen=True)
class TierProbe:
    """A forbidden act that was tried, and whether it was stopped."""

    name: str
    held: bool
    detail: str = ""


@dataclass(frozen=True)
class Powers:
    """What this machine's sandbox can promise and what it can run: found once, at the start."""

    tier: Tier
    memory_bound: MemoryBound
    fork: bool  # runs of several processes or threads
    execute: bool  # compilers, binaries, other languages
    scratch: bool  # a directory to write, with quotas
    kernel: str = "host"  # host | gvisor | kata
    probes: tuple[TierProbe, ...] = ()
    base: Tier = Tier.T0  # the layers to use: `tier` without the kernel of its own, so T4's T2 or T3
    user_namespace: bool = False  # namespaces come through a user namespace: root's own are not allowed here


@dataclass(frozen=True)
class Layers:
    """Which layers are on. All of them; tests switch one off to see that it is needed."""

    namespaces: bool = True  # pid, mount, ipc, uts, cgroup; a user namespace where not root
    network: bool = True  # an empty network namespace
    private_root: bool = True  # read-only system directories, nothing else of the host
    quotas: bool = True  # tmpfs sizes and inodes
    user: bool = True  # a uid a slot
    rlimits: bool = True
    no_new_privileges: bool = True
    landlock: bool = True
    seccomp: bool = True
    cgroup: bool = True
    descriptors: bool = True  # everything above the few that a run needs is closed
    environment: bool = True  # nothing of the service's
    kill_all: bool = True  # everything that a run started ends with it


ALL_LAYERS = Layers()
