"""Table of isolation tiers: what each needs, runs, stops and leaves; decisions, messages and docs are made of it.

The table is `tiers.yaml`, beside this. Pure: from probes to a tier, and from a tier to words. Who tries what is
`probing`'s business.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from areal.yaml_file.table import flat, read_table, tuple_fields

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


_TABLE = read_table("areal_judge.sandbox.host", "tiers.yaml")
REQUIRED: Mapping[Tier, tuple[Requirement, ...]] = {
    Tier[tier]: tuple(Requirement(**tuple_fields(row)) for row in flat(rows))
    for tier, rows in _TABLE["required"].items()
}
"""What each tier needs. T4 needs T2 or T3 below it, too."""

TABLE: tuple[Promise, ...] = tuple(Promise(Tier[tier], **tuple_fields(row)) for tier, row in _TABLE["promises"].items())

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
