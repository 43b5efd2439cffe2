"""The role `archive`: copies the run directory into the object store that the job names, again and again.

What is refused or can't be reached is told and tried again: training waits for none of it. `finish`, on one machine
`areal run`, copies what came last.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from areal.errors import ArealError, ExitCode, InfraError, Kind
from areal.net.server import GrpcServer
from areal.object_store import ObjectStore
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.plan import ResolvedJob
from areal.plan.context import RoleContext
from areal.record.archive import Archive

log = logging.getLogger(__name__)

_PASS_S = 60.0
_AGAIN_S = 10.0  # after a pass that failed
_DRAIN_S = 1.0


async def run(ctx: RoleContext) -> int:
    """Copy until asked to stop; returns the exit code."""
    resolved = ctx.resolved
    metrics = RoleMetrics(ctx.role, resolved.name)
    server = GrpcServer(ctx.role, ctx.access, waits=WaitRegistry(ctx.role), progress=ctx.progress)
    await server.start(ctx.port, ctx.bind)
    metrics.serve(ctx.metrics_port, ctx.bind)
    await server.set_ready(True)
    archive, where = Archive(resolved.run_dir), resolved.store_address
    log.info("copying the run to %s", where)
    copied = metrics.gauge("areal_archive_copied_timestamp_seconds")  # 0 until then: the alert tells of that, too
    failures = {kind: metrics.counter("areal_archive_failures_total", reason=kind) for kind in (*Kind, "disk")}

    def sent(count: int) -> None:
        metrics.counter("areal_archive_sent_bytes_total").inc(count)
        if ctx.stop.is_set():
            raise InfraError("asked to stop")

    while not ctx.stop.is_set():
        pause = _PASS_S
        try:
            listing = await asyncio.to_thread(lambda: archive.copy(_store(resolved), sent))
            copied.set(listing.at)
            ctx.progress.doing = f"{len(listing.files)} files are at {where}"
        except (ArealError, OSError) as error:
            if ctx.stop.is_set():
                break
            failures[error.kind if isinstance(error, ArealError) else "disk"].inc()
            ctx.progress.doing = f"nothing is copied: {getattr(error, 'message', error)}"
            log.warning("not copied, trying again: %s", error)
            pause = _AGAIN_S
        with suppress(TimeoutError):
            await asyncio.wait_for(ctx.stop.wait(), pause)
    await server.stop(_DRAIN_S)
    return ExitCode.DONE


def copy_rest(resolved: ResolvedJob, say: Callable[[str], None]) -> bool:
    """Copy a run that ended, where its job names a store; answers whether all of it is there, or need not be."""
    if resolved.spec.storage.store is None:
        return True
    try:
        Archive(resolved.run_dir).copy(_store(resolved))
    except (ArealError, OSError) as error:
        say(f"the store lacks the end of the run: {error}")
        return False
    say(f"the run is at {resolved.store_address}")
    return True


def _store(resolved: ResolvedJob) -> ObjectStore:
    """A new connection, by the credentials that hold now."""
    return ObjectStore.connect(resolved.store_address, resolved.store_credentials)
