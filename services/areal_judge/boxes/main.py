"""Entry of the role `boxes`: the boxes of a run's episodes, in a sandbox of their own.

The service ends with the role, and every box with it: to the workers that is a fault of the infrastructure.
"""

import asyncio
import contextlib
import logging

from areal.errors import ExitCode
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.plan.context import RoleContext
from areal.v1 import boxes_pb2_grpc as rpc
from areal.values.boxes import BoxEndCause

from areal_judge.boxes.registry import BoxBounds, BoxRegistry
from areal_judge.boxes.service import SERVICE_NAME, BoxSettings, box_stack

log = logging.getLogger(__name__)

_DRAIN_S = 1.0  # streams of holders don't end by themselves
_SAMPLE_S = 1.0


async def run(ctx: RoleContext) -> int:
    """Serves until asked to stop; returns the exit code.

    Raises:
        ConfigError: this machine is below tier T3.
        InfraError: the sandbox does not start.
    """
    metrics = RoleMetrics(ctx.role, ctx.resolved.name)
    server = GrpcServer(ctx.role, ctx.access, waits=WaitRegistry(ctx.role), progress=ctx.progress)
    bounds = BoxBounds(boxes=ctx.resolved.spec.rollout.boxes.max_concurrent)
    async with contextlib.AsyncExitStack() as owned:
        boxes = await owned.enter_async_context(box_stack(BoxSettings(bounds)))
        server.add(rpc.add_BoxesServicer_to_server, boxes.service, SERVICE_NAME)
        port = await server.start(ctx.port, ctx.bind)
        owned.push_async_callback(server.stop, _DRAIN_S)
        metrics.serve(ctx.metrics_port, ctx.bind)
        metrics.gauge("areal_boxes_capacity").set(bounds.boxes)
        counting = asyncio.create_task(_counted(boxes.registry, metrics))
        owned.push_async_callback(_cancelled, counting)
        await server.set_ready(True)
        ctx.progress.doing = "serving boxes"
        log.info("up to %d boxes on port %d, tier %s", bounds.boxes, port, boxes.sandbox.powers.tier.name)
        await ctx.stop.wait()
        ctx.progress.doing = "draining"
    return ExitCode.DRAINED


async def _counted(registry: BoxRegistry, metrics: RoleMetrics) -> None:
    told: dict[BoxEndCause, int] = {}
    while True:
        metrics.gauge("areal_boxes_live").set(registry.live)
        for cause, ended in registry.ends.items():
            metrics.counter("areal_boxes_ended_total", cause=cause.value).inc(ended - told.get(cause, 0))
            told[cause] = ended
        await asyncio.sleep(_SAMPLE_S)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
