"""The roles `reward` (built-in verifiers), `reward-custom` (the recipe's) and `reward-model`: one gRPC service each.

They differ in what they offer only, so that neither user code nor PyTorch ever enters the hardened role's processes.
A job whose verifier is `code` has the sandbox in its reward role.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from areal.errors import ConfigError, ExitCode
from areal.net.server import GrpcServer
from areal.net.status import kind_from_wire
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.plan.context import RoleContext
from areal.reward.verifier import Verifier, fault_result
from areal.reward.verifiers.code import judging_programs
from areal.reward.verifiers.custom import CustomVerifier
from areal.reward.verifiers.exact import ExactVerifier
from areal.reward.verifiers.math import MathVerifier
from areal.reward.verifiers.model import ModelVerifier
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb
from areal.v1 import reward_pb2_grpc as rpc

log = logging.getLogger(__name__)

_DRAIN_S = 5.0  # for items in flight when the role is asked to stop


def verifiers_for(ctx: RoleContext, waits: WaitRegistry) -> Mapping[str, Verifier]:
    """What this instance offers, by its role. Raises ConfigError when the job gives it nothing to offer."""
    settings = ctx.resolved.spec.reward
    offered: list[Verifier]
    if ctx.role == "reward-custom":
        recipe = ctx.resolved.recipe_path
        if recipe is None:
            raise ConfigError("the custom verifier needs a recipe", fix="set recipe.file in the job")
        deadline_s = settings.deadline_seconds
        offered = [CustomVerifier(recipe, deadline_s=deadline_s, weights=settings.weights, waits=waits)]
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


# ---- The Reward gRPC service: sends each item to its verifier and answers in the order of the items


SERVICE_NAME = "areal.v1.Reward"
Context = grpc.aio.ServicerContext[Any, Any]


class RewardService(rpc.RewardServicer):
    """Items fail alone: a fault is that item's result, never the call's status."""

    def __init__(self, verifiers: Mapping[str, Verifier], metrics: RoleMetrics, progress: ProgressCounter) -> None:
        self._verifiers = dict(verifiers)
        self._metrics = metrics
        self._progress = progress
        self._inflight = metrics.gauge("areal_reward_inflight")
        metrics.gauge("areal_reward_capacity").set(sum(verifier.slots for verifier in verifiers.values()))

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        """Scores all items, each by the verifier it names."""
        positions: dict[str, list[int]] = {}
        for position, item in enumerate(request.items):
            positions.setdefault(item.verifier, []).append(position)
        self._inflight.inc(len(request.items))
        try:
            parts = await asyncio.gather(
                *(self._part(name, [request.items[at] for at in where]) for name, where in positions.items())
            )
        finally:
            self._inflight.dec(len(request.items))
        results: list[pb.ScoreResult] = [pb.ScoreResult()] * len(request.items)
        for where, part in zip(positions.values(), parts, strict=True):
            for position, result in zip(where, part, strict=True):
                results[position] = result
        self._progress.advance(len(results))
        return pb.ScoreResponse(results=results)

    async def _part(self, name: str, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        verifier = self._verifiers.get(name)
        began = time.monotonic()
        if verifier is None:
            offered = ", ".join(sorted(self._verifiers))
            message = f'this reward service has no verifier "{name}" (it has {offered})'
            fix = "set reward.verifier to one of them, or define reward in the recipe for custom"
            results = [fault_result(common.FAULT_KIND_CONFIG, message, fix=fix)] * len(items)
            name = "unknown"  # a metric's label is no place for whatever a caller sends
        else:
            try:
                results = await verifier.score(items)
            except Exception as error:
                log.exception("the %s verifier failed on %d items", name, len(items))
                message = f"the {name} verifier failed: {type(error).__name__}: {error}"
                results = [fault_result(common.FAULT_KIND_BUG, message)] * len(items)
        self._count(name, results, time.monotonic() - began)
        return results

    def _count(self, name: str, results: Sequence[pb.ScoreResult], wall_s: float) -> None:
        counts: dict[str, int] = {}
        for result in results:
            verdict = _verdict_of(result)
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict.startswith("fault_") and counts[verdict] == 1:
                log.warning("%s: %s", verdict, result.fault.message)
        for verdict, count in counts.items():
            self._metrics.counter("areal_reward_requests_total", verifier=name, verdict=verdict).inc(count)
        duration = self._metrics.histogram("areal_reward_duration_seconds", verifier=name)
        for result in results:
            duration.observe(result.wall_s or wall_s / len(results))


def _verdict_of(result: pb.ScoreResult) -> str:
    match result.WhichOneof("outcome"):
        case "score":
            return "score"
        case "verdict":
            return result.verdict.status.lower()
        case _:
            return f"fault_{kind_from_wire(result.fault.kind).name.lower()}"
