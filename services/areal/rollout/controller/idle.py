"""The reason for which the controller admits nothing, in words.

Reads the core, changes nothing.
"""

from __future__ import annotations

from areal.rollout.controller.core import Controller


def idle_reason(core: Controller) -> str:
    """Why nothing is admitted now, in words; empty when the gate has room and somebody works."""
    settings, last = core.settings, core.last_round
    if core.done:
        return "the run is over"
    if core.stalled:
        return core.stalled
    if core.desk.finished:
        return "the trainer has finished; the last evaluation is running"
    if core.fleet.served is None:
        return "no weights are published yet: waiting for the trainer"
    states = core.fleet.states()
    if not states["ready"]:
        known = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if count) or "none has reported"
        return f"no generation server is ready ({known}) with weights {core.fleet.served.policy_id}"
    if not core.crew.live():
        return "no rollout worker is connected"
    if core.book.streak.bad_luck:
        return core.book.streak.bad_luck
    newest = core.fleet.newest_version
    if last.room_bytes == 0:
        share = core.book.reserved * settings.bytes_per_group / max(1, settings.budget_bytes)
        return f"the byte budget is {share:.0%} full: waiting for a checkpoint to free it"
    if last.room == 0:
        if core.book.next_rank >= core.max_steps * settings.batch_groups:
            return f"all groups of {core.max_steps} steps are admitted"
        if last.in_work + last.waiting >= settings.max_concurrent:
            return f"{last.in_work + last.waiting} groups in work, as many as maxConcurrentRollouts allows"
        if (kept := core.evaluations.pinned) is not None and kept != core.fleet.served:
            return (
                f"the evaluation of version {kept.version} keeps the servers at it: evaluation.oneVersion asks for that"
            )
        ahead = core.book.waiting_complete()
        return (
            f"the gate is closed at version {newest} with maxStaleness {settings.max_staleness}: "
            f"{ahead} complete groups wait for the trainer"
        )
    if last.waiting:
        return f"{last.waiting} groups wait for a place at a worker or for another try"
    return ""
