"""What must hold on every schedule, told from the truth that no role sees.

Promise 1: every group ends exactly once, trained in the surviving lineage or tombstoned, and faults that heal leave no
tombstone of infra, deadline or poison. Promise 2: no trained token is older than its group's η. Promise 6 is the run's
own: it finishes within bounded virtual time.
"""

from __future__ import annotations

from collections import Counter

from areal.ledger.values import COMPLETE
from areal.rollout.controller.core import Controller
from areal.sim.world import TrueSample, World

_HEALED = ("infra", "deadline", "poison")


def check_admission(world: World, core: Controller, group: int) -> None:
    """Admission stays within η of what servers really loaded, and within the run's length."""
    settings = core.settings
    last_step = min(world.truth.newest_loaded + settings.max_staleness + 1, core.max_steps)
    rank = core.book.ranks.rank(group)
    if rank >= last_step * settings.batch_groups:
        world.truth.problems.append(
            f"promise 2: group {group} of rank {rank} was admitted while servers held {world.truth.newest_loaded}"
        )


def check_close(world: World, group: int, outcome: str) -> None:
    """The journal has a tombstone before the ledger hears of it."""
    if outcome != COMPLETE and group not in world.journal.tombstones:
        world.truth.problems.append(f"promise 1: group {group} was closed as {outcome} before the journal had it")


def surviving(world: World) -> dict[int, tuple[tuple[int, ...], tuple[tuple[bytes, ...], ...]]]:
    """Step → groups and payloads of the surviving lineage: an entry survives unless a later trainer started at or
    below its step."""
    lineage: dict[int, tuple[tuple[int, ...], tuple[tuple[bytes, ...], ...]]] = {}
    for step, fence, groups, payloads in world.truth.trained:
        if any(later > fence and from_step <= step for later, from_step in world.truth.starts):
            continue
        if step in lineage:
            world.truth.problems.append(f"promise 1: step {step} was trained twice")
        lineage[step] = (groups, payloads)
    return lineage


def verify(world: World) -> list[str]:
    """Everything that is wrong with a finished schedule."""
    problems = world.truth.problems
    lineage = surviving(world)
    if sorted(lineage) != list(range(len(lineage))):
        problems.append(f"promise 1: steps {sorted(lineage)} are not consecutive")
    trained = Counter(group for groups, _ in lineage.values() for group in groups)
    tombstones = world.journal.tombstones
    problems += [f"promise 1: group {g} was trained {count} times" for g, count in trained.items() if count > 1]
    problems += [f"promise 1: group {g} was trained and tombstoned" for g in trained if g in tombstones]
    ended = set(trained) | set(tombstones)
    lost = set(range(max(ended, default=-1) + 1)) - ended
    problems += [f"promise 1: group {g} has no end" for g in sorted(lost)]
    problems += [f"promise 1: group {t.group} ended as {t.reason}" for t in tombstones.values() if t.reason in _HEALED]
    for step, (groups, payloads) in lineage.items():
        if len(groups) != world.scenario.batch_groups:
            problems.append(f"promise 1: step {step} trained {len(groups)} groups")
        for group, parts in zip(groups, payloads, strict=True):
            _check_group(world, step, group, [world.truth.samples[int(part)] for part in parts])
    return problems


def _check_group(world: World, step: int, group: int, samples: list[TrueSample]) -> None:
    if len(samples) != world.scenario.group_size:
        world.truth.problems.append(f"promise 1: group {group} was trained with {len(samples)} samples")
    eta = min(samples, key=lambda sample: sample.first_token_s).eta
    oldest = min(version for sample in samples for version in sample.versions)
    if step - oldest > eta:
        world.truth.problems.append(
            f"promise 2: step {step} trained group {group} with a token of version {oldest}, its η is {eta}"
        )
