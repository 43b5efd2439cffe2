"""The roles `reward` (exact and math) and `reward-custom` (the recipe's function): one gRPC service each.

They differ in what they offer only, so that user code and its dependencies never enter the hardened role's processes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from areal.errors import ConfigError, ExitCode
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.progress import ProgressCounter
from areal.observe.waits import WaitRegistry
from areal.plan.context import RoleContext
from areal.reward.service import SERVICE_NAME, RewardService
from areal.reward.verifier import Verifier
from areal.reward.verifiers.custom import CustomVerifier
from areal.reward.verifiers.exact import ExactVerifier
from areal.reward.verifiers.math import MathVerifier
from areal.v1 import reward_pb2_grpc as rpc

log = logging.getLogger(__name__)

_DRAIN_S = 5.0  # for items in flight when the role is asked to stop


def verifiers_for(ctx: RoleContext, waits: WaitRegistry) -> Mapping[str, Verifier]:
    """What this instance offers, by its role. Raises ConfigError when the job gives it nothing to offer."""
    settings = ctx.job.job.spec.reward
    offered: list[Verifier]
    if ctx.role == "reward-custom":
        if ctx.job.recipe_path is None:
            raise ConfigError("the custom verifier needs a recipe", fix="set recipe.file in the job")
        offered = [CustomVerifier(ctx.job.recipe_path, deadline_s=settings.deadline_seconds, waits=waits)]
    else:
        offered = [ExactVerifier(settings.answer_field), MathVerifier(settings.answer_field, waits=waits)]
    return {verifier.name: verifier for verifier in offered}


async def run(ctx: RoleContext) -> int:
    """Serves until asked to stop; returns the exit code. Raises DataError when the recipe cannot be used."""
    waits = WaitRegistry(ctx.role)
    progress = ProgressCounter()
    metrics = RoleMetrics(ctx.role, ctx.job.job.metadata.name)
    verifiers = verifiers_for(ctx, waits)
    server = GrpcServer(ctx.role, ctx.token, waits=waits, progress=progress)
    server.add(rpc.add_RewardServicer_to_server, RewardService(verifiers, metrics, progress), SERVICE_NAME)
    try:
        port = await server.start(ctx.port, ctx.bind)
        metrics.serve(ctx.metrics_port, ctx.bind)
        for verifier in verifiers.values():
            await verifier.start()
        await server.set_ready(True)
        progress.doing = f"scoring ({', '.join(verifiers)})"
        log.info("serving %s on port %d", ", ".join(verifiers), port)
        await ctx.stop.wait()
        progress.doing = "draining"
    finally:
        await server.stop(_DRAIN_S)
        for verifier in verifiers.values():
            await verifier.stop()
    return ExitCode.DRAINED
