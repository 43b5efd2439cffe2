"""Reconcile loop body: observe one job, decide, write its status, apply the effects.

This page is the operator. The decision is written into the status before its effects, so a process that dies between
the two is followed by one that knows it; every effect is idempotent.
"""

from __future__ import annotations

from areal_operator.kube.resources import Key
from areal_operator.operator.decide import decide
from areal_operator.operator.decision import Acting, CleanUp, Converge, End, Finish, HandsOff, Prepare, Reject, Suspend
from areal_operator.operator.effects import Effects
from areal_operator.operator.observe import observe
from areal_operator.operator.status_writer import write_status
from areal_operator.operator.times import SOON_S
from areal_operator.operator.world import World


async def reconcile(key: Key, world: World) -> float | None:
    """Bring one RLJob's children to what its spec, its status and the clock ask for.

    Returns in how many seconds to reconcile again at the latest; None: when something changes.
    """
    job = world.job(key)
    if job is None:  # deleted, or being deleted: its children go with it, and none is made again
        world.forget(key)
        return None

    seen = await observe(job, world)
    decision = decide(seen, world.now())
    if isinstance(decision, HandsOff):  # another controller's job
        world.forget(key)
        return None

    written = await write_status(seen, decision, world)
    if written.outdated:  # the job changed since it was observed
        return SOON_S

    effects = Effects(seen, world)
    match decision:
        case Reject() | End():
            effects.listen_no_more()

        case Prepare(retire=retire):
            await effects.lay_foundation()
            await effects.retire(retire)
            await effects.run_prepare()

        case Converge(replicas=replicas, apply=apply, tell=tell, hot=hot):
            if apply:
                await effects.lay_foundation()
                await effects.run_workloads(replicas)
            await effects.listen()
            effects.tell_epoch(tell, decision.memory.epoch)  # which the status holds by now
            await effects.set_hot(hot)

        case Suspend(drain=drain, replicas=replicas, retire=retire):
            await effects.listen()
            effects.drain(drain)
            await effects.retire(retire)
            if replicas is not None:
                await effects.run_workloads(replicas)

        case Finish(retire=retire):
            await effects.retire(retire)
            await effects.run_finish()

        case CleanUp(remove=remove, delete_job=delete_job):
            effects.listen_no_more()
            await effects.remove(remove)
            if delete_job:
                await effects.delete_job()

    if isinstance(decision, Acting):
        await effects.evict(decision.evict)
    return written.again_s(decision.again_s)
