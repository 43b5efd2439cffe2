"""Status writer: server-side apply of a job's status under an optimistic lock, rate-limited for figures.

Owns the rate at which figures reach etcd, the resourceVersion precondition that keeps an outdated observation from
overwriting a newer status, and the events of what was written.
"""

from __future__ import annotations

from dataclasses import dataclass

from areal_operator.kube.errors import ConflictError, NotFoundError
from areal_operator.operator.announce import announcements
from areal_operator.operator.decision import Decision
from areal_operator.operator.observed import Observed
from areal_operator.operator.summarize import summarize, urgent
from areal_operator.operator.times import FLUSH_S
from areal_operator.operator.together import together
from areal_operator.operator.world import World
from areal_operator.runtime.api import STATUS_MANAGER


@dataclass(frozen=True)
class Written:
    """Result of a write. `outdated`: the job is not as it was observed, so no effect may follow."""

    outdated: bool = False
    flush_in_s: float | None = None  # changed figures are written then

    def again_s(self, asked_s: float | None) -> float | None:
        """When to reconcile again, given when the decision asks for it."""
        times = [time for time in (asked_s, self.flush_in_s) if time is not None]
        return min(times, default=None)


async def write_status(seen: Observed, decision: Decision, world: World) -> Written:
    """Write what is new: at once what anyone may wait for, figures every `FLUSH_S`, nothing when all is equal."""
    before, now = seen.raw.get("status", {}), world.now()
    status = summarize(seen, decision, now)
    if status == before:
        return Written()
    notes = world.notes(seen.key, seen.raw["metadata"]["uid"])
    due = notes.flushed_at + FLUSH_S
    if now < due and not urgent(before, status):
        return Written(flush_in_s=due - now)
    metadata = {name: seen.raw["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    written = {"apiVersion": seen.raw["apiVersion"], "kind": seen.raw["kind"], "metadata": metadata, "status": status}
    try:
        await world.api.apply(written, manager=STATUS_MANAGER, subresource="status")
    except (ConflictError, NotFoundError):
        return Written(outdated=True)
    notes.flushed_at = now
    said = announcements(before, status)
    await together(world.recorder.event(seen.raw, type=it.type, reason=it.reason, message=it.message) for it in said)
    return Written()
