"""The cause for which the controller admits nothing, with a sentence for people.

Reads the core, changes nothing.
"""

from areal.observe.live import Idle, IdleCause
from areal.rollout.controller.core import Controller
from areal.rollout.controller.groups import GroupPhase, PromptGroup


def idle_of(core: Controller) -> Idle | None:
    """Why nothing is admitted now; None when the gate has room and somebody works."""
    settings, last = core.settings, core.last_round
    if core.done:
        return Idle(IdleCause.OVER, "the run is over")
    if core.stalled:
        return Idle(IdleCause.STALLED, core.stalled)
    if core.desk.finished:
        return Idle(IdleCause.LAST_EVALUATION, "the trainer has finished; the last evaluation is running")
    if core.fleet.served is None:
        return Idle(IdleCause.NO_WEIGHTS, "no weights are published yet: waiting for the trainer")
    if core.turns is not None and core.turns.training:
        text = f"the cards train: turn {core.turns.count}, {core.attention - core.turns.since:.0f} s"
        return Idle(IdleCause.TRAINING_TURN, text)
    states = core.fleet.states()
    if not states["ready"]:
        known = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count) or "none has reported"
        return Idle(
            IdleCause.NO_SERVER, f"no generation server is ready ({known}) with weights {core.fleet.served.policy_id}"
        )
    if not core.crew.live():
        return Idle(IdleCause.NO_WORKER, "no rollout worker is connected")
    if core.book.streak.bad_luck:
        return Idle(IdleCause.UNTRAINED_GROUPS, core.book.streak.bad_luck)
    if last.room_bytes == 0:
        share = len(core.book.groups) * settings.bytes_per_group / max(1, settings.budget_bytes)
        return Idle(IdleCause.BYTES_FULL, f"the byte budget is {share:.0%} full: waiting for a checkpoint to free it")
    if last.room == 0:
        return _closed(core)
    if last.waiting:
        text = f"{last.waiting} groups wait for a place at a worker or for another try"
        return Idle(IdleCause.NO_PLACE, text)
    return None


def _closed(core: Controller) -> Idle:
    """Why the gate has no room."""
    settings, last = core.settings, core.last_round
    if len(core.book.order.waiting) >= (core.max_steps - core.book.order.chosen) * settings.batch_groups:
        return Idle(IdleCause.ALL_ADMITTED, f"all groups of {core.max_steps} steps are admitted")
    if (working := last.in_work + last.waiting) >= settings.max_concurrent:
        return Idle(IdleCause.CONCURRENCY, f"{working} groups in work, as many as maxConcurrentRollouts allows")
    if (kept := core.evaluations.pinned) is not None and kept != core.fleet.served:
        text = f"the evaluation of version {kept.version} keeps the servers at it: evaluation.oneVersion asks for that"
        return Idle(IdleCause.ONE_VERSION, text)
    text = (
        f"the gate is closed at version {core.fleet.newest_version} with ahead {settings.lead}: "
        f"{core.book.waiting_complete()} complete groups wait for the trainer"
    )
    return Idle(IdleCause.GATE_CLOSED, text)


def batch_waits(core: Controller) -> str:
    """The group that keeps the next batch from being chosen, in words; empty when the trainer wants none."""
    book, order = core.book, core.book.order
    if not order.wanted:
        return ""
    waiting = [group for g in order.waiting if (group := book.groups[g]).due is not None]
    late = sorted((group for group in waiting if group.phase is not GroupPhase.CLOSED), key=PromptGroup.by_urgency)
    complete, batch = len(waiting) - len(late), core.settings.batch_groups
    if complete < batch or not late:
        return f"step {order.chosen} waits for {max(0, batch - complete)} of {batch} groups to be complete"
    first = late[0]
    return (
        f"step {order.chosen} waits for group {first.index}, due at step {first.due} (maxStaleness "
        f"{core.settings.max_staleness}): {len(first.done)} of {core.settings.group_size} samples are there, "
        f"the rest is {f'at {first.worker}' if first.worker else 'at no worker'}"
    )
