"""One job, once: look, decide, remember, act.

This page is the operator. What was decided is written into the status before it is done, so a process that dies
between the two is followed by one that knows; and everything that is done may be done again.
"""

from __future__ import annotations

from areal.operator.acting import Acting
from areal.operator.decide import decide
from areal.operator.decision import CleanUp, Converge, End, Finish, HandsOff, Prepare, Reject, Suspend
from areal.operator.looking import look
from areal.operator.remembering import remember
from areal.operator.runtime.resources import Key
from areal.operator.times import SOON_S
from areal.operator.world import World


async def reconcile(key: Key, world: World) -> float | None:
    """Bring one RLJob's children to what its spec, its status and the clock ask for.

    Returns in how many seconds to look again, whatever happens until then; None: when something changes.
    """
    job = world.job(key)
    if job is None:  # deleted, or being deleted: its children go with it, and none is made again
        world.forget(key)
        return None

    seen = await look(job, world)
    decision = decide(seen, world.now())
    if isinstance(decision, HandsOff):  # another controller's job
        world.forget(key)
        return None

    remembered = await remember(seen, decision, world)
    if remembered.outdated:  # the job changed while we looked
        return SOON_S

    act = Acting(seen, world)
    match decision:
        case Reject() | End():
            act.listen_no_more()

        case Prepare(retire=retire):
            await act.lay_foundation()
            await act.retire(retire)
            await act.run_prepare()

        case Converge(replicas=replicas, apply=apply, tell=tell, hot=hot):
            if apply:
                await act.lay_foundation()
                await act.run_workloads(replicas)
            await act.listen()
            await act.tell_epoch(tell, decision.memory.epoch)  # which the status holds by now
            await act.set_hot(hot)

        case Suspend(drain=drain, replicas=replicas, retire=retire):
            await act.listen()
            await act.drain(drain)
            await act.retire(retire)
            if replicas is not None:
                await act.run_workloads(replicas)

        case Finish(retire=retire):
            await act.retire(retire)
            await act.run_finish()

        case CleanUp(remove=remove, delete_job=delete_job):
            act.listen_no_more()
            await act.remove(remove)
            if delete_job:
                await act.delete_job()

    await act.evict(getattr(decision, "evict", ()))
    return remembered.again_s(decision.again_s)
