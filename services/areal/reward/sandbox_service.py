"""The Sandbox gRPC service: what callers ask becomes questions to the dispatcher, and its answers results.

A caller's deadline and his going away reach the run. A full queue is RESOURCE_EXHAUSTED with a hint for single calls;
streams wait instead: the service reads no further than it has room.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
import orjson

from areal import __version__
from areal.errors import DataError
from areal.observe.progress import ProgressCounter
from areal.reward import sandbox_wire as wire
from areal.reward.dispatch.dispatcher import Dispatcher
from areal.reward.dispatch.readiness import Readiness
from areal.reward.dispatch.suite_store import StoredSuite
from areal.reward.dispatch.values import Executed, RefusedError
from areal.reward.judge.values import Judgement, Status
from areal.reward.verifier import Verifier
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2
from areal.v1 import sandbox_pb2 as pb
from areal.v1 import sandbox_pb2_grpc as rpc

log = logging.getLogger(__name__)

SERVICE_NAME = "areal.v1.Sandbox"
RETRY_AFTER = "retry-after-ms"
STREAM_WINDOW = 256  # requests of one stream in work: more than any service has slots, less than any queue holds
_THREAD_ABOVE_BYTES = 256 << 10  # suites this large are read beside the event loop

Context = grpc.aio.ServicerContext[Any, Any]
Q = TypeVar("Q", pb.JudgeRequest, pb.ExecuteRequest, pb.MathRequest)
R = TypeVar("R", pb.JudgeResult, pb.ExecuteResult, pb.MathResult)


class SandboxService(rpc.SandboxServicer):
    """Serves one dispatcher, and the math verifier where there is one."""

    def __init__(
        self, dispatcher: Dispatcher, readiness: Readiness, progress: ProgressCounter, math: Verifier | None = None
    ) -> None:
        self._dispatcher = dispatcher
        self._readiness = readiness
        self._progress = progress
        self._math = math

    async def Judge(self, request: pb.JudgeRequest, context: Context) -> pb.JudgeResult:
        result = await self._judge(request, context.time_remaining())
        await _turn_away(context, result.status, result.message, result.retry_after_ms)
        return result

    async def JudgeBatch(
        self, request_iterator: AsyncIterator[pb.JudgeRequest], context: Context
    ) -> AsyncIterator[pb.JudgeResult]:
        async for result in _each(request_iterator, lambda one: _patient(lambda: self._judge(one, _left(context)))):
            yield result

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> pb.ExecuteResult:
        result = await self._execute(request, context.time_remaining())
        await _turn_away(context, result.status, result.message, result.retry_after_ms)
        return result

    async def ExecuteStream(
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Context
    ) -> AsyncIterator[pb.ExecuteResult]:
        async for result in _each(request_iterator, lambda one: _patient(lambda: self._execute(one, _left(context)))):
            yield result

    async def VerifyMath(self, request: pb.MathRequest, context: Context) -> pb.MathResult:
        return await self._verify(request)

    async def VerifyMathBatch(
        self, request_iterator: AsyncIterator[pb.MathRequest], context: Context
    ) -> AsyncIterator[pb.MathResult]:
        async for result in _each(request_iterator, self._verify):
            yield result

    async def PutSuite(self, request: pb.Suite, context: Context) -> pb.SuiteRef:
        try:
            return pb.SuiteRef(digest=self._dispatcher.put_suite(await _suite(request)))
        except (DataError, RefusedError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def Capabilities(self, request: pb.CapabilitiesRequest, context: Context) -> pb.SandboxCapabilities:
        dispatcher, state = self._dispatcher, self._readiness
        return wire.offer_to_wire(
            dispatcher.offer, dispatcher.slots, dispatcher.scheduler.memory, __version__, state.ready, state.words
        )

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResult:
        return pb.CancelResult(found=self._dispatcher.cancel(request.tenant, request.request_id))

    async def _judge(self, request: pb.JudgeRequest, remaining_s: float | None) -> pb.JudgeResult:
        offer = self._dispatcher.offer
        try:
            ticket = wire.ticket_of(request, remaining_s)
            options, overrides = wire.options_of(request, offer.min_tier), wire.overrides_of(request)
            suite: StoredSuite | str = request.suite_digest
            if request.WhichOneof("tests") == "suite":
                suite = await _suite(request.suite)
            judgement = await self._dispatcher.judge(
                wire.submission_of(request.program), suite, options, ticket, overrides
            )
        except RefusedError as refused:
            judgement = Judgement(refused.status, message=refused.message, tier=offer.tier)
        except DataError as error:
            judgement = Judgement(Status.GOLD_ERROR, message=str(error), tier=offer.tier)
        self._progress.advance()
        if log.isEnabledFor(logging.DEBUG):
            told = {"request_id": request.request_id, "tenant": request.tenant, "labels": dict(request.labels)}
            log.debug("judged %s in %.3f s", judgement.status.value, judgement.timing.total_s, extra=told)
        return wire.judgement_to_wire(judgement, request.request_id, offer.runtime_digest)

    async def _execute(self, request: pb.ExecuteRequest, remaining_s: float | None) -> pb.ExecuteResult:
        offer = self._dispatcher.offer
        try:
            ticket = wire.ticket_of(request, remaining_s)
            executed = await self._dispatcher.execute(wire.execution_of(request, offer.min_tier), ticket)
        except RefusedError as refused:
            executed = Executed(refused.status, message=refused.message)
        self._progress.advance()
        return wire.executed_to_wire(executed, request.request_id)

    async def _verify(self, request: pb.MathRequest) -> pb.MathResult:
        began = time.monotonic()
        if self._math is None:
            message = "this service verifies no mathematics: install areal[reward]"
            return pb.MathResult(request_id=request.request_id, status=pb.MATH_STATUS_ERROR, detail=message)
        item = reward_pb2.ScoreItem(
            verifier="math",
            completion=request.completion,
            row_json=orjson.dumps({"answer": request.gold}),
            deadline_s=request.deadline_ms / 1000,
        )
        (result,) = await self._math.score([item])
        self._progress.advance()
        answer = _math_result(result)
        answer.request_id = request.request_id
        answer.elapsed_us = round((time.monotonic() - began) * 1e6)
        return answer


def _math_result(result: reward_pb2.ScoreResult) -> pb.MathResult:
    if result.WhichOneof("outcome") == "verdict":
        verdict = result.verdict
        try:
            status = pb.MathStatus.Value(f"MATH_STATUS_{verdict.status}")
        except ValueError:
            return pb.MathResult(status=pb.MATH_STATUS_ERROR, detail=f"the verdict {verdict.status} is unknown")
        return pb.MathResult(score=verdict.score, status=status, method=verdict.method, detail=verdict.detail)
    fault = result.fault
    if fault.kind == common.FAULT_KIND_DATA:
        return pb.MathResult(status=pb.MATH_STATUS_GOLD_UNPARSEABLE, detail=fault.message)
    retryable = fault.kind == common.FAULT_KIND_INFRA
    return pb.MathResult(status=pb.MATH_STATUS_ERROR, detail=fault.message, retryable=retryable)


async def _suite(suite: pb.Suite) -> StoredSuite:
    if len(suite.json) <= _THREAD_ABOVE_BYTES:
        return wire.suite_of_json(suite.json, suite.format)
    return await asyncio.to_thread(wire.suite_of_json, suite.json, suite.format)


def _left(context: Context) -> float | None:
    remaining: float | None = context.time_remaining()
    return remaining


async def _turn_away(context: Context, status: int, message: str, retry_after_ms: int) -> None:
    if status == pb.SANDBOX_STATUS_REJECTED_OVERLOAD:
        hint = ((RETRY_AFTER, str(retry_after_ms)),)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, message, hint)


async def _patient(ask: Callable[[], Awaitable[R]]) -> R:
    """Of a stream: asks again when there may be room, as long as the stream lives."""
    while True:
        result = await ask()
        if result.status != pb.SANDBOX_STATUS_REJECTED_OVERLOAD:
            return result
        await asyncio.sleep(getattr(result, "retry_after_ms", 0) / 1000 or 0.05)


async def _each(requests: AsyncIterator[Q], answer: Callable[[Q], Awaitable[R]]) -> AsyncIterator[R]:
    """Answers in the order in which they are ready; reads on while fewer than STREAM_WINDOW are in work."""
    room = asyncio.Semaphore(STREAM_WINDOW)
    ready: asyncio.Queue[R | BaseException | None] = asyncio.Queue()
    working: set[asyncio.Task[None]] = set()

    async def one(request: Q) -> None:
        try:
            ready.put_nowait(await answer(request))
        except Exception as error:
            ready.put_nowait(error)
        finally:
            room.release()

    async def read() -> None:
        try:
            await room.acquire()
            async for request in requests:
                task = asyncio.create_task(one(request))
                working.add(task)
                task.add_done_callback(working.discard)
                await room.acquire()
            await asyncio.gather(*working)
            ready.put_nowait(None)
        except Exception as error:
            ready.put_nowait(error)

    reader = asyncio.create_task(read())
    try:
        while (result := await ready.get()) is not None:
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        reader.cancel()
        for task in list(working):
            task.cancel()
        await asyncio.gather(reader, *working, return_exceptions=True)
