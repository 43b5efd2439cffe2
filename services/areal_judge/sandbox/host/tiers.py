"""Table of isolation tiers: what each needs, runs, stops and leaves; decisions, messages and docs are made of it.

Pure: from probes to a tier, and from a tier to words. Who tries what is `probing`'s business.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from areal_judge.sandbox.values import MemoryBound, Powers, Tier, TierProbe


@dataclass(frozen=True)
class Requirement:
    """Something that a tier stands on: at least one of `probes` must have held."""

    probes: tuple[str, ...]
    purpose: str  # what would be lost without it
    fix: str  # how a machine gets it, in the imperative


@dataclass(frozen=True)
class Promise:
    """What a tier is to a user. Every line is a sentence of the docs."""

    tier: Tier
    name: str
    where: str
    made_of: str
    runs: tuple[str, ...]
    stops: tuple[str, ...]
    leaves: tuple[str, ...]  # what it doesn't stop


_LINUX = "Run on Linux 5.13 or later on x86_64 or aarch64, in a container whose seccomp profile is RuntimeDefault."
_FILTERS = (
    Requirement(("seccomp",), "a filter of system calls", _LINUX),
    Requirement(("rlimit_memory",), "a bound of a process's memory", _LINUX),
    Requirement(("rlimit_file_size",), "a bound of a file's size", _LINUX),
    Requirement(("rlimit_open_files",), "a bound of open files", _LINUX),
    Requirement(("rlimit_cpu",), "a bound of processor time", _LINUX),
    Requirement(
        ("landlock_signals", "signals_by_filter", "pid_namespace"), "no signal to processes outside the run", _LINUX
    ),
)
_NAMESPACES = (
    "Run as root with CAP_SYS_ADMIN; or allow user namespaces (in a pod hostUsers: false, Kubernetes 1.33 and later; "
    "on a machine user.max_user_namespaces above 0 and no AppArmor restriction); or set runtimeClassName: gvisor."
)

REQUIRED: Mapping[Tier, tuple[Requirement, ...]] = {
    Tier.T0: (),
    Tier.T2: (
        *_FILTERS,
        Requirement(
            ("landlock_files", "private_root"),
            "no file outside the run can be read",
            "Run on a kernel with Landlock switched on (lsm=…,landlock on its command line), or get T3.",
        ),
    ),
    Tier.T3: (
        *_FILTERS,
        Requirement(("pid_namespace",), "processes of its own, all ended with the run", _NAMESPACES),
        Requirement(("private_root",), "a root directory that holds nothing of the machine", _NAMESPACES),
        Requirement(("quota_bytes",), "a scratch directory with a quota", _NAMESPACES),
        Requirement(("ipc_namespace",), "no shared memory or queue that outlives the run", _NAMESPACES),
        Requirement(("network_namespace",), "no network, loopback included", _NAMESPACES),
        Requirement(("other_user", "user_namespace"), "a user of its own", _NAMESPACES),
    ),
    Tier.T4: (
        Requirement(
            ("own_kernel",),
            "a kernel of its own",
            "Set runtimeClassName: gvisor (or kata, with AREAL_SANDBOX_KERNEL=kata) in the pod of the reward service.",
        ),
    ),
}
"""What each tier needs. T4 needs T2 or T3 below it, too."""

TABLE: tuple[Promise, ...] = (
    Promise(
        Tier.T0,
        "none",
        "a machine that may be lost; only with allowUnsafe, never on a cluster",
        "rlimits and a killed process group",
        ("everything that the machine runs",),
        ("accidents: endless loops, one process's memory",),
        ("every attack",),
    ),
    Promise(
        Tier.T2,
        "restricted",
        "a pod of Kubernetes' restricted profile: an ordinary user, no capability, no user namespace",
        "seccomp, Landlock, rlimits; no fork, no exec, no directory to write",
        ("Python in one process: stdin/stdout, function and assert suites",),
        (
            "reading files, the service's environment, other runs",
            "network, abstract and loopback sockets",
            "signals, the kernel's for a descriptor too, ptrace and memory access outside the run",
            "processor time, wall time, memory, output, descriptors, threads",
            "disk and inodes: nothing can be written, no mode, owner, time or attribute of a file changed",
            "everything that would outlive the run",
        ),
        (
            "tempfile, multiprocessing, subprocess and compiled languages don't work",
            "whether a path exists can be seen",
            "runs can tell each other bits by access times of files that all may read, and by how fast these are read",
            "threads of all runs are counted together where the service is an ordinary user",
            "a bug of the machine's kernel",
        ),
    ),
    Promise(
        Tier.T3,
        "namespaced",
        "root on a machine, an ordinary user where user namespaces are allowed, a pod with hostUsers: false",
        "T2's filters, pid, mount, ipc, network and uts namespaces, a private read-only root, a scratch directory with "
        "quotas, a user of its own, a cgroup where one is delegated",
        ("every language whose toolchain the image has", "programs that fork, start others, and write files"),
        (
            "everything that T2 stops, behind a second wall",
            "disk and inodes above the quota",
            "whether a path of the machine exists",
            "memory of all processes of a run together, where a cgroup is delegated",
        ),
        (
            "without a cgroup, several processes may take the limit each",
            "its /proc shows the machine's memory and processors in numbers, names of kernel symbols, and where its "
            "own mounts come from",
            "runs can tell each other bits by how fast files that all may read are read",
            "a bug of the machine's kernel",
        ),
    ),
    Promise(
        Tier.T4,
        "own kernel",
        "a pod whose RuntimeClass is gVisor or Kata",
        "T3 or T2 inside a kernel that is not the machine's",
        ("what the tier inside it runs, up to ten times slower to start under gVisor",),
        ("what the tier inside it stops", "a bug of the kernel: a second one is needed"),
        (
            "the processor's side channels",
            "under gVisor there is no Landlock, and without a cgroup only time and the pod's memory bound how many "
            "processes a run starts",
        ),
    ),
)

CAPABILITIES: Mapping[str, tuple[Tier, str]] = {
    "fork": (Tier.T3, "runs several processes"),
    "execute": (Tier.T3, "starts another program (compilers and every language but Python)"),
    "scratch": (Tier.T3, "writes files"),
}
"""What a run may ask for, the least tier that gives it, and the words for it."""


def promise(tier: Tier) -> Promise:
    return next(one for one in TABLE if one.tier is tier)


def missing(tier: Tier, probes: Iterable[TierProbe]) -> tuple[Requirement, ...]:
    """What of a tier's requirements didn't hold, in the table's order. Empty: the tier is there."""
    held = {probe.name for probe in probes if probe.held}
    lacking = [one for one in REQUIRED[tier] if not held.intersection(one.probes)]
    if tier is Tier.T4 and _host_tier(probes) < Tier.T2:
        lacking += missing(Tier.T2, probes)
    return tuple(dict.fromkeys(lacking))


def _host_tier(probes: Iterable[TierProbe]) -> Tier:
    """The highest tier without asking whose kernel it is."""
    found = tuple(probes)
    return next((tier for tier in (Tier.T3, Tier.T2) if not missing(tier, found)), Tier.T0)


def decide(
    probes: Iterable[TierProbe], kernel: str = "host", highest: Tier = Tier.T4, allow_unsafe: bool = False
) -> Powers:
    """What the probes add up to. A run of T2 is one process that writes nothing.

    Args:
        kernel: host, gvisor or kata.
        highest: an emulated lower tier; what only a higher one has is then not promised.
        allow_unsafe: whether T0 runs anything.
    """
    found = tuple(probes)
    held = {probe.name for probe in found if probe.held}
    base = min(_host_tier(found), max(highest, Tier.T0), Tier.T3)
    if base < Tier.T3 and base != _host_tier(found) and missing(base, found):
        base = Tier.T0
    own_kernel = base >= Tier.T2 and highest >= Tier.T4 and "own_kernel" in held
    several = base is Tier.T3 or (base is Tier.T0 and allow_unsafe)
    grouped = {"cgroup_memory", "cgroup_processes"} <= held
    return Powers(
        tier=Tier.T4 if own_kernel else base,
        base=base,
        memory_bound=MemoryBound.CGROUP if base is Tier.T3 and grouped else MemoryBound.PROCESS,
        fork=several,
        execute=several,
        scratch=several,
        user_namespace=base is Tier.T3 and "root_namespaces" not in held,
        kernel=kernel,
        probes=found,
    )


def why_not(tier: Tier, powers: Powers) -> tuple[str, str]:
    """A message and a fix for whoever needs `tier` where `powers` is all there is."""
    here, wanted = promise(powers.tier), promise(tier)
    head = f"the sandbox reaches tier {here.tier.name} ({here.name}), below {tier.name} ({wanted.name})"
    lacking = missing(tier, powers.probes)
    if not lacking:
        return f"{head}: it was held to that tier", f"Let the sandbox use {tier.name}: remove its highest tier."
    found = {probe.name: probe.detail for probe in powers.probes}
    tried = [", ".join(f"{name}: {found.get(name, 'not tried')}" for name in one.probes) for one in lacking]
    reasons = [f"{one.purpose} ({how})" for one, how in zip(lacking, tried, strict=True)]
    fixes = dict.fromkeys(one.fix for one in lacking)
    return f"{head}; it lacks " + "; ".join(reasons), " ".join(fixes)


def why_refused(capability: str, powers: Powers) -> tuple[str, str]:
    """A message and a fix for a run that asks for `fork`, `execute` or `scratch` where the tier has none."""
    least, words = CAPABILITIES[capability]
    message = f"the program {words}, which tier {powers.tier.name} ({promise(powers.tier).name}) doesn't allow"
    return message, f"Run it where the sandbox reaches {least.name}. {why_not(least, powers)[1]}"


def as_markdown() -> str:
    """The table of the docs."""
    lines = ["| tier | where | made of | runs | stops | doesn't stop |", "|---|---|---|---|---|---|"]
    for one in TABLE:
        cells = [f"**{one.tier.name}** {one.name}", one.where, one.made_of]
        cells += ["<br>".join(part) for part in (one.runs, one.stops, one.leaves)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
