"""Invariants checked on every schedule, against a record that no role sees.

Promise 1: every group ends exactly once, trained in the surviving lineage or tombstoned, and faults that heal leave no
tombstone of infra, deadline or poison. Promise 2: no trained token is older than its group's η. Promise 6 is the run's
own: it finishes within bounded virtual time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from areal.ledger.values import COMPLETE, TRAINED, CloseResult, CloseStatus, TombstoneReason
from areal.record.episode_ends import GENERATED, TokenFate
from areal.rollout.controller.carrier import Entry
from areal.rollout.controller.core import Controller
from areal.rollout.controller.decisions import AssignBatch, CloseGroup, JournalBatch, JournalTombstone
from areal.rollout.controller.groups import GroupPhase
from areal.rollout.controller.kept import RestoredState
from areal.rollout.controller.settings import ControllerSettings
from areal.rollout.controller.token_book import TokenBook

from simulation.scenario import FaultKind
from simulation.world import SimWorld, TrueStep

HELD = ("served", "max_steps", "max_staleness", "max_concurrent", "ahead")  # what a controller keeps
_HEALED = {TombstoneReason.INFRA, TombstoneReason.DEADLINE, TombstoneReason.POISON}
_LATE = {FaultKind.LATE_REPORTS, FaultKind.PAUSE_WORKER}
_DOUBLES = {FaultKind.PAUSE_WORKER, FaultKind.PAUSE_SERVER, FaultKind.PAUSE_CONTROLLER}  # two processes, one name
_UNHEARD = {FaultKind.PAUSE_SERVER, FaultKind.LATE_BEATS, FaultKind.KILL_CONTROLLER}  # a server's last words may be
_UNDONE = {FaultKind.POISON, FaultKind.KILL_REDIS, FaultKind.PAUSE_CONTROLLER}  # a chosen group may not be trained
_UNCHOSEN = {TombstoneReason.FILTERED, TombstoneReason.ENDED}  # reasons that no group of a batch has


def check_admission(world: SimWorld, core: Controller, group: int) -> None:
    """Admission stays within the lead on what servers really loaded, and within the run's length."""
    settings, book = core.settings, core.book
    last_step = min(world.truth.newest_loaded + settings.lead + 1, core.max_steps)
    if book.order.chosen * settings.batch_groups + len(book.order.waiting) > last_step * settings.batch_groups:
        world.truth.problems.append(
            f"promise 2: group {group} was admitted beside {len(book.order.waiting)} while servers held "
            f"{world.truth.newest_loaded}"
        )


def check_assigned(world: SimWorld, told: AssignBatch) -> None:
    """A batch is on disk before the ledger hears of it, and never changes."""
    batches, problems = world.journal.on_disk.batches, world.truth.problems
    if told.step >= len(batches) or batches[told.step] != told.groups:
        problems.append(f"promise 1: the ledger was told the batch {told.groups} of step {told.step}, the journal not")


def check_order(world: SimWorld, core: Controller) -> None:
    """Every granted group can still be trained in time, whatever becomes of the others. Two controllers can't know.

    Nor does a new one, of a group whose worker comes back late: it is made again.
    """
    order, batch_groups = core.book.order, core.settings.batch_groups
    kinds = {fault.kind for fault in world.scenario.faults}
    if FaultKind.PAUSE_CONTROLLER in kinds:
        return
    first = order.chosen if FaultKind.KILL_CONTROLLER in kinds and kinds & _LATE else 0
    due = sorted(due for g in order.waiting if (due := core.book.groups[g].due) is not None and due >= first)
    for place, step in enumerate(due):
        if step < order.chosen + place // batch_groups:
            world.truth.problems.append(f"promise 2: groups due at {due} are too many from step {order.chosen} on")
            return


def check_batch(world: SimWorld, core: Controller, batch: JournalBatch) -> None:
    """A batch is of complete groups; in admission order nothing overtakes."""
    groups = [core.book.groups[g] for g in batch.groups]
    if any(group.phase is not GroupPhase.CLOSED for group in groups):
        world.truth.problems.append(f"promise 1: step {batch.step} has the batch {batch.groups}, which isn't complete")
    if core.settings.admission_order and any(g < max(batch.groups) for g in core.book.order.waiting):
        world.truth.problems.append(f"promise 2: step {batch.step} overtakes with {batch.groups}")


def check_close(world: SimWorld, close: CloseGroup) -> None:
    """The journal has it on disk before the ledger hears of it."""
    on_disk, group, problems = world.journal.on_disk, close.group, world.truth.problems
    if close.outcome not in (COMPLETE, TRAINED) and group not in on_disk.tombstones:
        problems.append(f"promise 1: group {group} was closed as {close.outcome} before the journal had it")
    if close.short and on_disk.short.get(group) != close.indices:
        problems.append(f"promise 1: group {group} was closed with {close.indices} before the journal had it")


def check_closed(world: SimWorld, core: Controller, group: int, answer: CloseResult) -> None:
    """The ledger closed complete what the controller judged; remember what that is."""
    if answer.status is not CloseStatus.CLOSED or answer.outcome != COMPLETE:
        return
    held = world.store.model.samples[group]
    world.truth.closed.setdefault(group, set()).add(tuple(held[index][0] for index in sorted(held)))
    if (known := core.book.groups.get(group)) is not None and world.store.run_id == 0:
        told = {index: figures.reward for index, figures in known.done.items()}
        if told != {index: meta.reward for index, (_, meta) in held.items() if index in told}:
            world.truth.problems.append(f"promise 1: group {group} was closed on figures that the ledger doesn't hold")


def check_length(world: SimWorld, core: Controller) -> None:
    """Nobody works on groups beyond the run's end."""
    book = core.book
    going = [g for g in book.order.waiting if book.groups[g].phase is GroupPhase.OPEN]
    if len(going) > (core.max_steps - book.order.chosen) * core.settings.batch_groups:
        world.truth.problems.append(f"groups {going} beyond the end of {core.max_steps} steps stay open")


def held(core: Controller) -> RestoredState:
    """What a controller goes by of all that it keeps."""
    settings = core.settings
    hot = (settings.max_steps, settings.max_staleness, settings.max_concurrent)
    return RestoredState(core.fleet.served, *hot, ahead=settings.ahead)


def check_kept(world: SimWorld, core: Controller, on_disk: Sequence[RestoredState]) -> None:
    """A controller goes by nothing that a restart could forget."""
    if held(core) not in on_disk[-2:]:
        world.truth.problems.append(f"{held(core)} holds before it is on disk")


def check_void(world: SimWorld, entries: Iterable[Entry], fence: int) -> None:
    """What a controller writes after a newer one began does not count."""
    for entry in entries:
        if isinstance(entry, JournalTombstone):
            counted = world.journal.on_disk.tombstones.get(entry.group)
            if counted is not None and counted.fence == fence:
                world.truth.problems.append(f"promise 5: group {entry.group} ended as old controller f{fence} says")


def check_rebuilt(world: SimWorld, settings: ControllerSettings) -> None:
    """Hot fields survive a restart."""
    kept = world.truth.kept
    for name in HELD[1:]:
        if (said := getattr(kept, name)) is not None and getattr(settings, name) != said:
            world.truth.problems.append(f"a restart forgot {name} {said}")


def surviving(world: SimWorld) -> dict[int, TrueStep]:
    """By step, what the surviving lineage trained: an entry survives unless a later trainer started at or below it."""
    lineage: dict[int, TrueStep] = {}
    for trained in world.truth.trained:
        if any(later > trained.fence and from_step <= trained.step for later, from_step in world.truth.starts):
            continue
        if trained.step in lineage:
            world.truth.problems.append(f"promise 1: step {trained.step} was trained twice")
        lineage[trained.step] = trained
    return lineage


def verify(world: SimWorld) -> list[str]:
    """Everything that is wrong with a finished schedule."""
    problems = world.truth.problems
    lineage = surviving(world)
    if sorted(lineage) != list(range(len(lineage))):
        problems.append(f"promise 1: steps {sorted(lineage)} are not consecutive")
    trained = Counter(group for step in lineage.values() for group in step.groups)
    tombstones = world.journal.on_disk.tombstones
    problems += [f"promise 1: group {g} was trained {count} times" for g, count in trained.items() if count > 1]
    problems += [f"promise 1: group {g} was trained and tombstoned" for g in trained if g in tombstones]
    ended = set(trained) | set(tombstones)
    lost = set(range(max(ended, default=-1) + 1)) - ended
    problems += [f"promise 1: group {g} has no end" for g in sorted(lost)]
    healed = _HEALED - ({TombstoneReason.DEADLINE} if world.scenario.endless_share else set())
    if any(fault.kind is FaultKind.POISON for fault in world.scenario.faults):
        healed -= {TombstoneReason.POISON}
    problems += [f"promise 1: group {t.group} ended as {t.reason}" for t in tombstones.values() if t.reason in healed]
    for step, entry in lineage.items():
        batch = world.journal.on_disk.batches[step] if step < len(world.journal.on_disk.batches) else ()
        if entry.groups != tuple(group for group in batch if group not in tombstones):
            problems.append(f"promise 1: step {step} trained {entry.groups}, chosen were {batch}")
        if any(group in tombstones and tombstones[group].reason in _UNCHOSEN for group in batch):
            problems.append(f"promise 1: a group of {batch}, chosen for step {step}, ended as if it had no batch")
        if len(batch) != world.scenario.batch_groups:
            problems.append(f"promise 1: step {step} has the batch {batch}")
        for group, payloads in zip(entry.groups, entry.payloads, strict=True):
            _check_group(world, step, group, payloads)
    _check_progress(world, len(lineage))
    return problems


def check_tokens(world: SimWorld, book: TokenBook, last_words: Iterable[tuple[str, str, dict[str, int]]]) -> None:
    """Each token that a server made has one fate; `last_words` are what living processes have not told yet."""
    for words in last_words:
        book.told(*words)
    book.close()
    counts, truth = book.counts(), world.truth
    kinds = {fault.kind for fault in world.scenario.faults}
    made, generated = truth.made_tokens, counts[GENERATED]
    told = made - (truth.untold_tokens.total() if FaultKind.KILL_SERVER in kinds else 0)
    if (decided := sum(counts[fate] for fate in TokenFate)) != generated:
        truth.problems.append(f"tokens: {generated} were generated, {decided} have a fate")
    if (generated > made and not kinds & _DOUBLES) or (generated < told and not kinds & _UNHEARD):
        truth.problems.append(f"tokens: {generated} are counted, {made} were made")
    samples = (int(payload) for step in surviving(world).values() for group in step.payloads for payload in group)
    trained = sum(len(truth.samples[sample].versions) for sample in samples)
    served = counts[TokenFate.SERVED] + counts[TokenFate.MIGRATED]
    missed = served < trained and FaultKind.KILL_CONTROLLER in kinds  # committed while nobody counted
    if served != trained and not missed and not kinds & _UNDONE:
        truth.problems.append(f"tokens: {served} are counted as served, {trained} were trained")
    if counts[TokenFate.LOST] != truth.failed_tokens and not kinds:
        truth.problems.append(f"tokens: {counts[TokenFate.LOST]} are counted as lost, {truth.failed_tokens} were")


def _check_progress(world: SimWorld, steps: int) -> None:
    """Promise 6: with nothing broken a step follows the last one in time, and a run without faults is no slower."""
    scenario, truth, now = world.scenario, world.truth, world.scheduler.now
    if truth.longest_idle_s > scenario.patience_s:
        truth.problems.append(f"promise 6: nothing was trained for {truth.longest_idle_s:.1f} s with nothing broken")
    if not scenario.faults and now > scenario.longest_s(steps):
        truth.problems.append(f"promise 6: {steps} steps without a fault took {now:.1f} s")


def _check_group(world: SimWorld, step: int, group: int, payloads: tuple[bytes, ...]) -> None:
    samples = [world.truth.samples[int(payload)] for payload in payloads]
    if payloads not in world.truth.closed.get(group, ()):
        world.truth.problems.append(f"promise 1: group {group} was trained with samples that it was not closed with")
    if len(samples) != world.scenario.group_size and len(samples) < 2:
        world.truth.problems.append(f"promise 1: group {group} was trained with {len(samples)} samples")
    eta = min(samples, key=lambda sample: sample.first_token_s).eta
    oldest = min(version for sample in samples for version in sample.versions)
    if step - oldest > eta:
        world.truth.problems.append(
            f"promise 2: step {step} trained group {group} with a token of version {oldest}, its η is {eta}"
        )
