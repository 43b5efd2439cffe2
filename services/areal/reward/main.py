"""The roles `reward` (built-in verifiers), `reward-custom` (the recipe's) and `reward-model`: one gRPC service each.

They differ in what they offer only, so that neither user code nor PyTorch ever enters the hardened role's processes.
A job whose verifier is `code` has the sandbox in its reward role.
"""

import contextlib
import logging
from collections.abc import Mapping

from areal.errors import ConfigError, ExitCode
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.plan.context import RoleContext
from areal.reward.service import SERVICE_NAME, RewardService
from areal.reward.verifier import Verifier
from areal.reward.verifiers.code import judging_programs
from areal.reward.verifiers.custom import CustomVerifier
from areal.reward.verifiers.exact import ExactVerifier
from areal.reward.verifiers.math import MathVerifier
from areal.reward.verifiers.model import ModelVerifier
from areal.v1 import reward_pb2_grpc as rpc

log = logging.getLogger(__name__)

_DRAIN_S = 5.0  # for items in flight when the role is asked to stop


def verifiers_for(ctx: RoleContext, waits: WaitRegistry) -> Mapping[str, Verifier]:
    """What this instance offers, by its role. Raises ConfigError when the job gives it nothing to offer."""
    settings = ctx.resolved.spec.reward
    offered: list[Verifier]
    if ctx.role == "reward-custom":
        if ctx.resolved.recipe_path is None:
            raise ConfigError("the custom verifier needs a recipe", fix="set recipe.file in the job")
        offered = [
            CustomVerifier(
                ctx.resolved.recipe_path, deadline_s=settings.deadline_seconds, weights=settings.weights, waits=waits
            )
        ]
    elif ctx.role == "reward-model":
        path, model = ctx.resolved.reward_model_path, settings.model
        if path is None or model is None:
            raise ConfigError("the verifier model needs a model", fix="set reward.model.path in the job")
        offered = [ModelVerifier(path, model, deadline_s=settings.deadline_seconds, waits=waits)]
    else:
        math = MathVerifier(settings.answer_field, gold_rounds=settings.gold_rounds, waits=waits)
        offered = [ExactVerifier(settings.answer_field), math]
    return {verifier.name: verifier for verifier in offered}


async def run(ctx: RoleContext) -> int:
    """Serves until asked to stop; returns the exit code.

    Raises:
        DataError: the recipe can't be used.
        ConfigError: this machine is below the tier that the job asks for.
    """
    waits = WaitRegistry(ctx.role)
    progress = ctx.progress
    metrics = RoleMetrics(ctx.role, ctx.resolved.name)
    verifiers = dict(verifiers_for(ctx, waits))
    server = GrpcServer(ctx.role, ctx.access, waits=waits, progress=progress)
    async with contextlib.AsyncExitStack() as owned:
        ready, tier = True, ""
        if ctx.role == "reward" and ctx.resolved.spec.reward.verifier == "code":
            judging = judging_programs(ctx.resolved.name, ctx.resolved.spec.reward, metrics, server.set_ready)
            verifiers["code"], ready, tier = await owned.enter_async_context(judging)
        server.add(rpc.add_RewardServicer_to_server, RewardService(verifiers, metrics, progress), SERVICE_NAME)
        try:
            port = await server.start(ctx.port, ctx.bind)
            metrics.serve(ctx.metrics_port, ctx.bind)
            for verifier in verifiers.values():
                await verifier.start()
            await server.set_ready(ready)
            progress.doing = f"scoring ({', '.join(verifiers)})"
            log.info("serving %s on port %d%s", ", ".join(verifiers), port, f", tier {tier}" if tier else "")
            await ctx.stop.wait()
            progress.doing = "draining"
        finally:
            await server.stop(_DRAIN_S)
            for verifier in verifiers.values():
                await verifier.stop()
    return ExitCode.DRAINED
