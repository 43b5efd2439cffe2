"""The Reward gRPC service: sends each item to its verifier and answers in the order of the items."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from areal.net.status import kind_from_wire
from areal.observe.metrics import RoleMetrics
from areal.observe.progress import ProgressCounter
from areal.reward.verifier import Verifier, fault_result
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb
from areal.v1 import reward_pb2_grpc as rpc

log = logging.getLogger(__name__)

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
