"""From probes to a tier, and from a tier to words: pure."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal_judge.sandbox.host import tiers
from areal_judge.sandbox.host.probing import ACTS
from areal_judge.sandbox.values import MemoryBound, Tier, TierProbe

_FILTERS = {"seccomp", "rlimit_memory", "rlimit_file_size", "rlimit_open_files", "rlimit_cpu"}
RESTRICTED = frozenset(_FILTERS | {"landlock_files", "landlock_signals", "landlock_sockets"})
NAMESPACES = frozenset(
    {"pid_namespace", "private_root", "quota_bytes", "quota_inodes", "ipc_namespace", "network_namespace", "own_proc"}
)
USER = RESTRICTED | NAMESPACES | {"user_namespace"}
ROOT = RESTRICTED | NAMESPACES | {"root_namespaces", "other_user", "cgroup_memory", "cgroup_processes"}
GVISOR = (ROOT - {"landlock_files", "landlock_signals", "landlock_sockets", "cgroup_memory", "cgroup_processes"}) | {
    "gvisor",
    "own_kernel",
}
EVERYTHING = frozenset(ACTS) | {"own_kernel"}


def probes(held: frozenset[str]) -> list[TierProbe]:
    return [TierProbe(name, name in held, "tried") for name in sorted(EVERYTHING)]


@pytest.mark.parametrize(
    ("held", "kernel", "tier", "base", "bound", "several"),
    [
        (frozenset(), "host", Tier.T0, Tier.T0, MemoryBound.PROCESS, False),
        (RESTRICTED, "host", Tier.T2, Tier.T2, MemoryBound.PROCESS, False),
        (RESTRICTED | {"other_user"}, "host", Tier.T2, Tier.T2, MemoryBound.PROCESS, False),
        (USER, "host", Tier.T3, Tier.T3, MemoryBound.PROCESS, True),
        (ROOT, "host", Tier.T3, Tier.T3, MemoryBound.CGROUP, True),
        (GVISOR, "gvisor", Tier.T4, Tier.T3, MemoryBound.PROCESS, True),
        (RESTRICTED | {"own_kernel"}, "kata", Tier.T4, Tier.T2, MemoryBound.PROCESS, False),
        (frozenset({"own_kernel"}), "kata", Tier.T0, Tier.T0, MemoryBound.PROCESS, False),
    ],
)
def test_probes_add_up_to_a_tier(
    held: frozenset[str], kernel: str, tier: Tier, base: Tier, bound: MemoryBound, several: bool
) -> None:
    powers = tiers.decide(probes(held), kernel)
    assert (powers.tier, powers.base, powers.memory_bound, powers.kernel) == (tier, base, bound, kernel)
    assert (powers.fork, powers.execute, powers.scratch) == (several, several, several)


@pytest.mark.parametrize("lost", sorted(_FILTERS))
def test_a_filter_that_is_not_effective_leaves_no_tier(lost: str) -> None:
    assert tiers.decide(probes(ROOT - {lost})).tier is Tier.T0


@pytest.mark.parametrize(
    "lost", ["pid_namespace", "private_root", "quota_bytes", "ipc_namespace", "network_namespace", "other_user"]
)
def test_one_namespace_less_is_a_tier_less(lost: str) -> None:
    assert tiers.decide(probes(ROOT - {lost})).tier is Tier.T2


def test_a_cgroup_that_only_bounds_memory_is_no_bound_of_a_run() -> None:
    assert tiers.decide(probes(ROOT - {"cgroup_processes"})).memory_bound is MemoryBound.PROCESS


@pytest.mark.parametrize("highest", [Tier.T0, Tier.T2, Tier.T3])
def test_a_higher_tier_can_be_held_to_a_lower_one(highest: Tier) -> None:
    powers = tiers.decide(probes(ROOT | {"own_kernel"}), "kata", highest)
    assert powers.tier is highest
    assert powers.fork is (highest is Tier.T3)


def test_without_a_sandbox_nothing_runs_unless_that_is_allowed() -> None:
    assert not tiers.decide(probes(frozenset())).execute
    assert tiers.decide(probes(frozenset()), allow_unsafe=True).execute


def test_what_lacks_is_named_with_what_was_seen_and_how_to_get_it() -> None:
    powers = tiers.decide([*probes(RESTRICTED - {"x"})])
    message, fix = tiers.why_not(Tier.T3, powers)
    assert "T2 (restricted), below T3 (namespaced)" in message
    assert "private_root: tried" in message
    assert "hostUsers: false" in fix


def test_a_tier_that_was_emulated_away_is_said_to_be() -> None:
    message, fix = tiers.why_not(Tier.T3, tiers.decide(probes(ROOT), highest=Tier.T2))
    assert "held to that tier" in message
    assert "T3" in fix


def test_a_kernel_of_its_own_over_nothing_lacks_the_tier_below() -> None:
    purposes = [one.purpose for one in tiers.missing(Tier.T4, probes(frozenset({"own_kernel"})))]
    assert "a filter of system calls" in purposes


@pytest.mark.parametrize("capability", sorted(tiers.CAPABILITIES))
def test_a_refusal_says_what_the_program_does_and_where_it_can(capability: str) -> None:
    message, fix = tiers.why_refused(capability, tiers.decide(probes(RESTRICTED)))
    assert "T2" in message
    assert "T3" in fix


def test_every_requirement_is_a_probe_that_is_made() -> None:
    required = {name for needs in tiers.REQUIRED.values() for need in needs for name in need.probes}
    assert required <= EVERYTHING


def test_the_docs_have_the_table_word_for_word() -> None:
    docs = Path(__file__).resolve().parents[4] / "docs" / "reward.md"
    assert tiers.as_markdown() in docs.read_text()


def test_the_table_has_each_tier_at_its_place() -> None:
    assert [one.tier for one in tiers.TABLE] == list(Tier)
