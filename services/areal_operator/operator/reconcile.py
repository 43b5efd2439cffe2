"""Reconcile loop body: observe one job, decide, write its status, apply the effects.

This page is the operator. The decision is written into the status before its effects, so a process that dies between
the two is followed by one that knows it; every effect is idempotent.
"""

from dataclasses import dataclass

from areal_operator.kube.errors import ConflictError, NotFoundError
from areal_operator.kube.resources import Key
from areal_operator.operator import decision as decisions
from areal_operator.operator.announce import announcements
from areal_operator.operator.decide import decide
from areal_operator.operator.effects import Effects
from areal_operator.operator.observe import observe
from areal_operator.operator.observed import Observation
from areal_operator.operator.summarize import summarize, urgent
from areal_operator.operator.times import FLUSH_S, SOON_S
from areal_operator.operator.together import together
from areal_operator.operator.world import OperatorWorld
from areal_operator.runtime.api import STATUS_MANAGER


async def reconcile(key: Key, world: OperatorWorld) -> float | None:
    """Bring one RLJob's children to what its spec, its status and the clock ask for.

    Returns in how many seconds to reconcile again at the latest; None: when something changes.
    """
    job = world.job(key)
    if job is None:  # deleted, or being deleted: its children go with it, and none is made again
        world.forget(key)
        return None

    seen = await observe(job, world)
    decision = decide(seen, world.now())
    if isinstance(decision, decisions.HandsOff):  # another controller's job
        world.forget(key)
        return None

    written = await write_status(seen, decision, world)
    if written.outdated:  # the job changed since it was observed
        return SOON_S

    effects = Effects(seen, world)
    match decision:
        case decisions.Reject() | decisions.EndJob():
            effects.listen_no_more()

        case decisions.Prepare(retire=retire):
            await effects.lay_foundation()
            await effects.retire(retire)
            await effects.run_prepare()

        case decisions.Converge(replicas=replicas, apply=apply, tell=tell, hot=hot):
            if apply:
                await effects.lay_foundation()
                await effects.run_workloads(replicas)
            await effects.listen()
            effects.tell_epoch(tell, decision.state.epoch)  # which the status holds by now
            await effects.set_hot(hot)

        case decisions.Suspend(drain=drain, replicas=replicas, retire=retire):
            await effects.listen()
            effects.drain(drain)
            await effects.retire(retire)
            if job["spec"].get("suspend") and not decision.state.prepared:
                await effects.lay_foundation()  # `areal submit` may wait for the runtime's copy and the claim
            if replicas is not None:
                await effects.run_workloads(replicas)

        case decisions.Finish(retire=retire):
            await effects.retire(retire)
            await effects.run_finish()

        case decisions.CleanUp(remove=remove, delete_job=delete_job):
            effects.listen_no_more()
            await effects.remove(remove)
            if delete_job:
                await effects.delete_job()

    if isinstance(decision, decisions.EvictingDecision):
        await effects.evict(decision.evict)
    if not isinstance(decision, decisions.Reject):
        await effects.keep_claim(decision.state)
    await effects.keep_place(decision)
    return written.again_s(decision.again_s)


@dataclass(frozen=True)
class StatusWrite:
    """Result of a server-side apply of the status under an optimistic lock.

    `outdated`: the job is not as it was observed, so no effect may follow.
    """

    outdated: bool = False
    flush_in_s: float | None = None  # changed figures are written then

    def again_s(self, asked_s: float | None) -> float | None:
        """When to reconcile again, given when the decision asks for it."""
        times = [time for time in (asked_s, self.flush_in_s) if time is not None]
        return min(times, default=None)


async def write_status(seen: Observation, decision: decisions.Decision, world: OperatorWorld) -> StatusWrite:
    """Write what is new: at once what anyone may wait for, figures every `FLUSH_S`, nothing when all is equal."""
    before, now = seen.raw.get("status", {}), world.now()
    status = summarize(seen, decision, now)
    if status == before:
        return StatusWrite()
    notes = world.notes(seen.key, seen.raw["metadata"]["uid"])
    due = notes.flushed_at + FLUSH_S
    if now < due and not urgent(before, status):
        return StatusWrite(flush_in_s=due - now)
    metadata = {name: seen.raw["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    written = {"apiVersion": seen.raw["apiVersion"], "kind": seen.raw["kind"], "metadata": metadata, "status": status}
    try:
        await world.api.apply(written, manager=STATUS_MANAGER, subresource="status")
    except (ConflictError, NotFoundError):
        return StatusWrite(outdated=True)
    notes.flushed_at = now
    said = announcements(before, status)
    await together(world.recorder.event(seen.raw, type=it.type, reason=it.reason, message=it.message) for it in said)
    return StatusWrite()
